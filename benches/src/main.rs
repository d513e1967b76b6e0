//! The benchmarks of lockgate, beside the peers named in each. `cargo xtask bench` builds and runs this;
//! README.md says what is measured, how, and how to read it.
//!
//! One binary is all the processes of a run: the one that was started conducts, and starts itself again
//! as worker, holder, server or load (see [`process`]), each tied to its life.

mod args;
mod bench;
mod callgrind;
mod clock;
mod contest;
mod contestant;
mod cores;
mod deferred;
mod figure;
mod holder;
mod http;
mod lifeline;
mod outcome;
mod plan;
mod process;
mod queue;
mod quiet;
mod quota;
mod record;
mod redis;
mod report;
mod scenario;
mod sent;
mod stats;
mod summary;
mod work;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use self::{args::Args, bench::Bench, deferred::Stage, outcome::Outcome};

/// Measures lockgate beside its peers; README.md says what, how, and how to read it
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
enum Task {
    /// The lock engine
    Locks(Args<scenario::Part>),
    /// The rate limiter
    Http {
        #[command(flatten)]
        args: Args<quota::Part>,
        /// Count the instructions of a refusal by valgrind: the same as --only 5
        #[arg(long)]
        instructions: bool,
    },
    /// Deferral and queues
    Defer(Args<deferred::Part>),
    /// The processes of a run.
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
    let done = match Task::parse() {
        Task::Locks(args) => locks(&args),
        Task::Http { instructions: true, .. } => {
            limits(&Args::only(vec![quota::Part::Instructions]))
        }
        Task::Http { args, .. } => limits(&args),
        Task::Defer(args) => deferral(&args),
        Task::Worker { plan } => worker::main(&plan).map(|()| true),
        Task::Holder { plan } => holder::main(&plan).map(|()| true),
        Task::Server { plan } => http::server::main(&plan).map(|()| true),
        Task::Limited { plan } => http::limited::main(&plan).map(|()| true),
        Task::Queue { plan } => queue::main(&plan).map(|()| true),
        Task::Rig { start } => queue::rig(&start).map(|()| true),
        Task::Load { plan } => http::load::main(&plan).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the benchmark could not be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing that was to be checked falls short.
fn locks(args: &Args<scenario::Part>) -> Outcome<bool> {
    if !cfg!(feature = "peers") {
        return Err("this was built without the peers; run it by `cargo xtask bench locks`".into());
    }
    let mut bench = Bench::start(args.pace()?)?;
    let figures = scenario::run(&mut bench, &args.parts())?;
    Ok(report::summary(&figures, &bench) || !args.check)
}

/// The same of the rate limiter. Peers that are not there are named.
fn limits(args: &Args<quota::Part>) -> Outcome<bool> {
    let mut bench = Bench::start(args.pace()?)?;
    let figures = quota::run(&mut bench, &args.parts())?;
    Ok(report::summary(&figures, &bench) || !args.check)
}

/// The same of deferral, also of the peers.
fn deferral(args: &Args<deferred::Part>) -> Outcome<bool> {
    let mut stage = Stage::start(args.pace()?, args.quick)?;
    let figures = deferred::run(&mut stage, &args.parts())?;
    Ok(report::summary(&figures, &stage.bench) || !args.check)
}
