//! Numbered figures of the lock engine, one module for each question.

mod hot_key;
mod lock_layer;
mod lock_memory;
mod renewal;
mod uncontended;
mod work_under_lock;

use clap::ValueEnum;

use crate::{
    bench_figure::BenchFigure, bench_result::BenchResult, bench_runner::BenchRunner, report,
};

/// Parts of `cargo xtask bench locks`: numbers of figures, and the memory report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockPart {
    #[value(name = "1")]
    HotKey,
    #[value(name = "2")]
    Processes,
    #[value(name = "3")]
    Work,
    #[value(name = "4")]
    Uncontended,
    #[value(name = "5")]
    Http,
    Memory,
}

/// Runs `parts`, prints the figures of each, and returns all figures.
pub(crate) fn run(bench: &mut BenchRunner, parts: &[LockPart]) -> BenchResult<Vec<BenchFigure>> {
    let mut all_figures = Vec::new();
    for part in parts {
        let figures = match part {
            LockPart::HotKey => hot_key::measure_one_process(bench)?,
            LockPart::Processes => hot_key::measure_four_processes(bench)?,
            LockPart::Work => work_under_lock::run(bench)?,
            LockPart::Uncontended => uncontended::run(bench)?,
            LockPart::Http => [lock_layer::run(bench)?, renewal::run(bench)?].concat(),
            LockPart::Memory => lock_memory::run(bench).map(|()| Vec::new())?,
        };
        report::print_figures(&figures);
        all_figures.extend(figures);
    }
    Ok(all_figures)
}
