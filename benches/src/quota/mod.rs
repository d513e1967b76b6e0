//! The numbered figures of the rate limiter, over HTTP, one file for each question.

mod allowed;
mod contest;
mod instructions;
mod latency;
mod leased;
mod refused;

use clap::ValueEnum;

use crate::{bench::Bench, figure::Figure, outcome::Outcome, report};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
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

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(bench: &mut Bench, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in parts {
        let figures = match part {
            Part::Refused => refused::run(bench)?,
            Part::HotKey => allowed::hot_key(bench)?,
            Part::Keys => [allowed::many_keys(bench)?, latency::run(bench)?].concat(),
            Part::Leases => leased::run(bench)?,
            Part::Instructions => instructions::run(bench)?,
        };
        report::figures(&figures);
        all.extend(figures);
    }
    Ok(all)
}
