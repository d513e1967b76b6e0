//! Numbered figures of the rate limiter over HTTP, one module for each question.

mod added_latency;
mod allowed_requests;
mod instructions;
mod limiter_comparison;
mod quota_leases;
mod refused_requests;

use clap::ValueEnum;

use crate::{
    bench_figure::BenchFigure, bench_result::BenchResult, bench_runner::BenchRunner, report,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RateLimitPart {
    #[value(name = "1")]
    Refused,
    #[value(name = "2")]
    HotKey,
    #[value(name = "3")]
    Keys,
    #[value(name = "4")]
    Leases,
    #[value(name = "5")]
    Instructions,
}

/// Runs `parts`, prints the figures of each, and returns all figures.
pub(crate) fn run(
    bench: &mut BenchRunner,
    parts: &[RateLimitPart],
) -> BenchResult<Vec<BenchFigure>> {
    let mut all_figures = Vec::new();
    for part in parts {
        let figures = match part {
            RateLimitPart::Refused => refused_requests::run(bench)?,
            RateLimitPart::HotKey => allowed_requests::measure_hot_key(bench)?,
            RateLimitPart::Keys => {
                [allowed_requests::measure_many_keys(bench)?, added_latency::run(bench)?].concat()
            }
            RateLimitPart::Leases => quota_leases::run(bench)?,
            RateLimitPart::Instructions => instructions::run(bench)?,
        };
        report::print_figures(&figures);
        all_figures.extend(figures);
    }
    Ok(all_figures)
}
