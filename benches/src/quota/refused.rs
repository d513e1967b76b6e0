//! Figure 1: one key that everybody uses, and its quota is spent.

use super::contest::{Contest, LITTLE, Trial, sent};
use crate::{
    bench::Bench,
    figure::{Figure, Line},
    http::limited::Kind,
    outcome::Outcome,
    report,
};

const HOT: Trial = Trial { processes: 1, connections: 64, keys: 1, limit: LITTLE };

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("1. Refused: one key, its quota is spent, 64 connections");
    let contest = Contest::run(bench, &HOT, &super::allowed::EVERYBODY)?;
    let (axum, actix) = (Kind::LayerAxum, Kind::LayerActix);
    let sent = |id, kind: Kind| Figure {
        id,
        what: format!("commands sent per refused request, {kind}"),
        unit: "",
        line: Line::AtMost(0.01),
        rounds: sent(contest.windows(kind)),
    };
    Ok(vec![
        contest.figure("1a", [axum, Kind::BareAxum], 0.95, "refused"),
        contest.figure("1b", [actix, Kind::BareActix], 0.95, "refused"),
        sent("1c", axum),
        sent("1d", actix),
    ])
}
