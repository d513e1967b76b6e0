//! Figures 2 and 3: requests within their quota, on one key and on many.

use super::limiter_comparison::{LimiterComparison, LimiterScenario, UNREACHABLE_LIMIT};
use crate::{
    bench_figure::BenchFigure, bench_result::BenchResult, bench_runner::BenchRunner,
    http::limiter_server::LimiterKind, report,
};

const ONE_KEY: LimiterScenario =
    LimiterScenario { processes: 1, connections: 64, keys: 1, limit: UNREACHABLE_LIMIT };
const MANY_KEYS: LimiterScenario =
    LimiterScenario { processes: 1, connections: 64, keys: 100_000, limit: UNREACHABLE_LIMIT };

/// Bare servers, lockgate and the peers, in both frameworks.
pub(super) const ALL_LIMITERS: [LimiterKind; 9] = [
    LimiterKind::BareAxum,
    LimiterKind::LayerAxum,
    LimiterKind::TowerRateLimiter,
    LimiterKind::HandWritten,
    LimiterKind::TowerGovernor,
    LimiterKind::BareActix,
    LimiterKind::LayerActix,
    LimiterKind::ActixExtensible,
    LimiterKind::ActixLimitation,
];

const AXUM_LAYER: LimiterKind = LimiterKind::LayerAxum;
const ACTIX_LAYER: LimiterKind = LimiterKind::LayerActix;

pub(super) fn measure_hot_key(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("2. Allowed: one key, 64 connections");
    let comparison = LimiterComparison::run(bench, &ONE_KEY, &ALL_LIMITERS)?;
    Ok(vec![
        comparison.ratio_figure("2a", [AXUM_LAYER, LimiterKind::BareAxum], 0.85, "one key"),
        comparison.ratio_figure("2b", [ACTIX_LAYER, LimiterKind::BareActix], 0.85, "one key"),
    ])
}

pub(super) fn measure_many_keys(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("3. Allowed: 100,000 keys, 64 connections");
    let comparison = LimiterComparison::run(bench, &MANY_KEYS, &ALL_LIMITERS)?;
    Ok(vec![
        comparison.ratio_figure(
            "3a",
            [AXUM_LAYER, LimiterKind::TowerRateLimiter],
            1.3,
            "many keys",
        ),
        comparison.ratio_figure("3b", [AXUM_LAYER, LimiterKind::BareAxum], 0.70, "many keys"),
        comparison.ratio_figure("3c", [ACTIX_LAYER, LimiterKind::BareActix], 0.70, "many keys"),
    ])
}
