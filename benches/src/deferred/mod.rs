//! Numbered figures of deferred requests and task queues, one module for each question.

mod backlog_depth;
mod idle_workers;
mod inspection;
mod instructions;
mod job_memory;
mod queue_bench;
mod queue_comparison;
mod script_times;
mod start_latency;
mod step_process;
mod throughput;

pub(crate) use self::queue_bench::QueueBench;
use clap::ValueEnum;

use crate::{bench_figure::BenchFigure, bench_result::BenchResult, report};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeferPart {
    #[value(name = "1")]
    StartLatency,
    #[value(name = "2")]
    Throughput,
    #[value(name = "3")]
    BacklogDepth,
    Memory,
    Idle,
    Inspection,
    Instructions,
}

/// Runs `parts`, prints the figures of each, and returns all figures.
pub(crate) fn run(bench: &mut QueueBench, parts: &[DeferPart]) -> BenchResult<Vec<BenchFigure>> {
    let mut all_figures = Vec::new();
    for part in parts {
        let figures = match part {
            DeferPart::StartLatency => start_latency::run(bench)?,
            DeferPart::Throughput => throughput::run(bench)?,
            DeferPart::BacklogDepth => backlog_depth::run(bench)?,
            DeferPart::Memory => job_memory::run(bench)?,
            DeferPart::Idle => idle_workers::run(bench)?,
            DeferPart::Inspection => inspection::run(bench)?,
            DeferPart::Instructions => instructions::run(bench)?,
        };
        report::print_figures(&figures);
        all_figures.extend(figures);
    }
    Ok(all_figures)
}
