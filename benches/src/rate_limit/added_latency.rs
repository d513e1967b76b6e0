//! Figure 3, one connection: latency that a rate check adds to a request.

use super::limiter_comparison::{
    LimiterComparison, LimiterMeasurement, LimiterScenario, UNREACHABLE_LIMIT, round_values,
};
use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    http::limiter_server::LimiterKind,
    report,
    stats::{median, paired_ratios},
};

const ONE_CONNECTION: LimiterScenario =
    LimiterScenario { processes: 1, connections: 1, keys: 1, limit: UNREACHABLE_LIMIT };

const COMPARED_LIMITERS: [LimiterKind; 7] = [
    LimiterKind::BareAxum,
    LimiterKind::Ping,
    LimiterKind::LayerAxum,
    LimiterKind::TowerRateLimiter,
    LimiterKind::HandWritten,
    LimiterKind::BareActix,
    LimiterKind::LayerActix,
];

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("3. Allowed: one connection");
    let comparison = LimiterComparison::run(bench, &ONE_CONNECTION, &COMPARED_LIMITERS)?;
    for kind in [
        LimiterKind::TowerRateLimiter,
        LimiterKind::HandWritten,
        LimiterKind::LayerAxum,
        LimiterKind::LayerActix,
    ] {
        let round_trips = format_number(median(&added_round_trips(&comparison, kind)));
        let handler_pings = paired_ratios(
            &added_p50(&comparison, kind),
            &added_p50(&comparison, LimiterKind::Ping),
        );
        let handler_pings = format_number(median(&handler_pings));
        println!(
            "  beside the figures: {kind} adds {round_trips} PINGs, \
             or {handler_pings} PINGs of an HTTP handler"
        );
    }
    let figure = |id, kind: LimiterKind| BenchFigure {
        id,
        description: format!("added p50, {kind} / one PING"),
        unit: "x",
        target: FigureTarget::AtMost(1.15),
        round_values: added_round_trips(&comparison, kind),
    };
    Ok(vec![figure("3d", LimiterKind::LayerAxum), figure("3e", LimiterKind::LayerActix)])
}

/// Returns the added p50 of each round in round trips of an idle process. A `PING` within an HTTP
/// handler takes longer, because its threads have to wake each other; `run` prints that ratio too.
fn added_round_trips(comparison: &LimiterComparison, kind: LimiterKind) -> Vec<f64> {
    paired_ratios(&added_p50(comparison, kind), &p50_values(comparison.ping_measurements()))
}

/// Returns the added p50 of each round, in milliseconds.
fn added_p50(comparison: &LimiterComparison, kind: LimiterKind) -> Vec<f64> {
    let (limited_values, bare_values) = (
        p50_values(comparison.measurements(kind)),
        p50_values(comparison.measurements(kind.bare_counterpart())),
    );
    limited_values.iter().zip(&bare_values).map(|(limited, bare)| limited - bare).collect()
}

fn p50_values(measurements: &[LimiterMeasurement]) -> Vec<f64> {
    round_values(measurements, |load| load.p50)
}
