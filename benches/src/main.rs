//! Benchmarks of lockgate and its peers. `cargo xtask bench` builds and runs this binary. README.md
//! describes the figures and the method.
//!
//! Most processes of a run are this binary. The first one is the runner; it starts the others in
//! other modes: worker, holder, server, load and so on (see [`bench_process`]). They exit when the
//! runner does.

mod acquire_event;
mod bench_args;
mod bench_figure;
mod bench_process;
mod bench_result;
mod bench_runner;
mod callgrind;
mod clock;
mod command_origins;
mod core_affinity;
mod cpu_share;
mod deferred;
mod http;
mod lock_comparison;
mod lock_contender;
mod lock_holder;
mod lock_measurement;
mod lock_worker;
mod locks;
mod queue;
mod rate_limit;
mod redis_server;
mod report;
mod runner_commands;
mod simulated_work;
mod stats;
mod worker_plan;

use std::process::ExitCode;

use clap::Parser;

use self::{
    bench_args::BenchArgs, bench_result::BenchResult, bench_runner::BenchRunner,
    deferred::QueueBench,
};

/// Compares lockgate with its peers; benches/README.md describes the figures
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
enum BenchCommand {
    /// Benchmark the lock engine
    Locks(BenchArgs<locks::LockPart>),
    /// Benchmark the rate limiter
    Http {
        #[command(flatten)]
        args: BenchArgs<rate_limit::RateLimitPart>,
        /// Count the instructions of a refusal with valgrind, like --only 5
        #[arg(long)]
        instructions: bool,
    },
    /// Benchmark deferred requests and task queues
    Defer(BenchArgs<deferred::DeferPart>),
    /// Modes of the child processes.
    #[command(hide = true)]
    Worker { plan: String },
    #[command(hide = true)]
    Holder { plan: String },
    #[command(hide = true)]
    Server { plan: String },
    #[command(hide = true)]
    Limited { plan: String },
    #[command(hide = true)]
    Queue { plan: String },
    #[command(hide = true)]
    Rig { start: String },
    #[command(hide = true)]
    Load { plan: String },
}

fn main() -> ExitCode {
    let result = match BenchCommand::parse() {
        BenchCommand::Locks(args) => run_lock_bench(&args),
        BenchCommand::Http { instructions: true, .. } => {
            run_rate_limit_bench(&BenchArgs::for_parts(vec![
                rate_limit::RateLimitPart::Instructions,
            ]))
        }
        BenchCommand::Http { args, .. } => run_rate_limit_bench(&args),
        BenchCommand::Defer(args) => run_deferral_bench(&args),
        BenchCommand::Worker { plan } => lock_worker::main(&plan).map(|()| true),
        BenchCommand::Holder { plan } => lock_holder::main(&plan).map(|()| true),
        BenchCommand::Server { plan } => http::lock_server::main(&plan).map(|()| true),
        BenchCommand::Limited { plan } => http::limiter_server::main(&plan).map(|()| true),
        BenchCommand::Queue { plan } => queue::main(&plan).map(|()| true),
        BenchCommand::Rig { start } => queue::run_step_executor(&start).map(|()| true),
        BenchCommand::Load { plan } => http::http_load::main(&plan).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns false if `--check` is set and a figure misses its target or a check failed.
fn run_lock_bench(args: &BenchArgs<locks::LockPart>) -> BenchResult<bool> {
    if !cfg!(feature = "peers") {
        return Err("this build lacks the peers; run `cargo xtask bench locks`".into());
    }
    let mut bench = BenchRunner::start(args.measurement_settings()?)?;
    let figures = locks::run(&mut bench, &args.selected_parts())?;
    Ok(report::print_summary(&figures, &bench) || !args.check)
}

/// Like [`run_lock_bench`]. Peers that are missing in this build are reported and left out.
fn run_rate_limit_bench(args: &BenchArgs<rate_limit::RateLimitPart>) -> BenchResult<bool> {
    let mut bench = BenchRunner::start(args.measurement_settings()?)?;
    let figures = rate_limit::run(&mut bench, &args.selected_parts())?;
    Ok(report::print_summary(&figures, &bench) || !args.check)
}

/// Like [`run_rate_limit_bench`].
fn run_deferral_bench(args: &BenchArgs<deferred::DeferPart>) -> BenchResult<bool> {
    let mut bench = QueueBench::start(args.measurement_settings()?, args.quick)?;
    let figures = deferred::run(&mut bench, &args.selected_parts())?;
    Ok(report::print_summary(&figures, &bench.runner) || !args.check)
}
