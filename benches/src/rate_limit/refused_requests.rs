//! Figure 1: all requests use one key whose quota is spent.

use super::limiter_comparison::{
    LimiterComparison, LimiterScenario, SMALL_LIMIT, commands_per_request,
};
use crate::{
    bench_figure::{BenchFigure, FigureTarget},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    http::limiter_server::LimiterKind,
    report,
};

const SPENT_KEY: LimiterScenario =
    LimiterScenario { processes: 1, connections: 64, keys: 1, limit: SMALL_LIMIT };

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("1. Refused: one key, its quota is spent, 64 connections");
    let comparison =
        LimiterComparison::run(bench, &SPENT_KEY, &super::allowed_requests::ALL_LIMITERS)?;
    let (axum, actix) = (LimiterKind::LayerAxum, LimiterKind::LayerActix);
    let sent_figure = |id, kind: LimiterKind| BenchFigure {
        id,
        description: format!("commands sent per refused request, {kind}"),
        unit: "",
        target: FigureTarget::AtMost(0.01),
        round_values: commands_per_request(comparison.measurements(kind)),
    };
    Ok(vec![
        comparison.ratio_figure("1a", [axum, LimiterKind::BareAxum], 0.95, "refused"),
        comparison.ratio_figure("1b", [actix, LimiterKind::BareActix], 0.95, "refused"),
        sent_figure("1c", axum),
        sent_figure("1d", actix),
    ])
}
