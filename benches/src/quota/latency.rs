//! Figure 3, alone: what a check adds to a request when nobody else asks.

use super::contest::{Contest, PLENTY, Trial, Window, rounds};
use crate::{
    bench::Bench,
    figure::{Figure, Line, short},
    http::limited::Kind,
    outcome::Outcome,
    report,
    stats::{median, paired_ratios},
};

const ALONE: Trial = Trial { processes: 1, connections: 1, keys: 1, limit: PLENTY };

const KINDS: [Kind; 6] = [
    Kind::BareAxum,
    Kind::LayerAxum,
    Kind::TowerRateLimiter,
    Kind::ByHand(1),
    Kind::BareActix,
    Kind::LayerActix,
];

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("3. Allowed: one connection");
    let contest = Contest::run(bench, &ALONE, &KINDS)?;
    let trips = |kind| added(&contest, kind);
    for kind in [Kind::TowerRateLimiter, Kind::ByHand(1)] {
        println!("  beside the figures: {kind} adds {} round trips", short(median(&trips(kind))));
    }
    let figure = |id, kind: Kind| Figure {
        id,
        what: format!("added p50 / PING p50 of the round: {kind}"),
        unit: "x",
        line: Line::AtMost(1.15),
        rounds: trips(kind),
    };
    Ok(vec![figure("3d", Kind::LayerAxum), figure("3e", Kind::LayerActix)])
}

/// By how many round trips the middle request takes longer than without a limit.
fn added(contest: &Contest, kind: Kind) -> Vec<f64> {
    let p50 = |windows: &[Window]| rounds(windows, |load| load.p50);
    let (with, without) = (p50(contest.windows(kind)), p50(contest.windows(kind.bare())));
    let added: Vec<f64> = with.iter().zip(&without).map(|(with, bare)| with - bare).collect();
    paired_ratios(&added, &p50(contest.ping()))
}
