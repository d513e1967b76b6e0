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

const KINDS: [Kind; 7] = [
    Kind::BareAxum,
    Kind::Ping,
    Kind::LayerAxum,
    Kind::TowerRateLimiter,
    Kind::ByHand,
    Kind::BareActix,
    Kind::LayerActix,
];

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("3. Allowed: one connection");
    let contest = Contest::run(bench, &ALONE, &KINDS)?;
    for kind in [Kind::TowerRateLimiter, Kind::ByHand, Kind::LayerAxum, Kind::LayerActix] {
        let trips = short(median(&trips(&contest, kind)));
        let within = paired_ratios(&added(&contest, kind), &added(&contest, Kind::Ping));
        let within = short(median(&within));
        println!(
            "  beside the figures: {kind} adds {trips} round trips, {within} of those that a handler makes"
        );
    }
    let figure = |id, kind: Kind| Figure {
        id,
        what: format!("added p50, {kind} / one PING"),
        unit: "x",
        line: Line::AtMost(1.15),
        rounds: trips(&contest, kind),
    };
    Ok(vec![figure("3d", Kind::LayerAxum), figure("3e", Kind::LayerActix)])
}

/// By how many round trips the middle request takes longer than without a limit. One is a `PING` of a
/// process that does nothing else. Printed beside it: in `PING`s of an HTTP handler, which takes longer for one,
/// since its threads have to wake each other.
fn trips(contest: &Contest, kind: Kind) -> Vec<f64> {
    paired_ratios(&added(contest, kind), &p50(contest.ping()))
}

/// By how much, in ms.
fn added(contest: &Contest, kind: Kind) -> Vec<f64> {
    let (with, without) = (p50(contest.windows(kind)), p50(contest.windows(kind.bare())));
    with.iter().zip(&without).map(|(with, bare)| with - bare).collect()
}

fn p50(windows: &[Window]) -> Vec<f64> {
    rounds(windows, |load| load.p50)
}
