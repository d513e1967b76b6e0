//! Figure 4: four processes that share one key and lease its quota.

use super::limiter_comparison::{LimiterComparison, LimiterScenario, UNREACHABLE_LIMIT};
use crate::{
    bench_figure::BenchFigure, bench_result::BenchResult, bench_runner::BenchRunner,
    http::limiter_server::LimiterKind, report,
};

const SHARED_KEY: LimiterScenario =
    LimiterScenario { processes: 4, connections: 64, keys: 1, limit: UNREACHABLE_LIMIT };

const COMPARED_LIMITERS: [LimiterKind; 3] =
    [LimiterKind::BareAxum, LimiterKind::LeasedAxum, LimiterKind::LayerAxum];

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("4. Allowed: one key, 4 processes, 64 connections");
    let comparison = LimiterComparison::run(bench, &SHARED_KEY, &COMPARED_LIMITERS)?;
    Ok(vec![comparison.ratio_figure(
        "4a",
        [LimiterKind::LeasedAxum, LimiterKind::BareAxum],
        0.95,
        "4 processes",
    )])
}
