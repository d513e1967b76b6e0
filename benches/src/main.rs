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
mod sweep;
mod work;
mod worker;

use std::{env, process::ExitCode};

use self::{
    args::{Args, Part, Task},
    bench::Bench,
    deferred::Stage,
    outcome::Outcome,
};

const USAGE: &str =
    "usage: cargo xtask bench locks|http|defer; `--help` after each tells its options";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["worker", plan] => worker::main(plan).map(|()| true),
        ["holder", plan] => holder::main(plan).map(|()| true),
        ["server", plan] => http::server::main(plan).map(|()| true),
        ["limited", plan] => http::limited::main(plan).map(|()| true),
        ["queue", plan] => queue::main(plan).map(|()| true),
        ["rig", start] => queue::rig(start).map(|()| true),
        ["load", plan] => http::load::main(plan).map(|()| true),
        ["locks", rest @ ..] => return conduct(rest, locks),
        ["http", "--instructions"] => return conduct(&["--only", "5"], limits),
        ["defer", rest @ ..] => return conduct(rest, deferral),
        ["http", rest @ ..] => return conduct(rest, limits),
        _ => return refused(USAGE),
    };
    ended(done)
}

/// A benchmark, with what was asked of it.
fn conduct<P: Part>(words: &[&str], run: impl FnOnce(&Args<P>) -> Outcome<bool>) -> ExitCode {
    if matches!(words, ["--help" | "-h"]) {
        println!("{}", P::USAGE);
        return ExitCode::SUCCESS;
    }
    match Args::read(words) {
        Ok(args) => ended(run(&args)),
        Err(sentence) => refused(&sentence),
    }
}

fn ended(done: Outcome<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the benchmark could not be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// 2 is for what was asked wrongly; 1 is for what was found wanting.
fn refused(sentence: &str) -> ExitCode {
    eprintln!("{sentence}");
    ExitCode::from(2)
}

/// Whether nothing that was to be checked falls short.
fn locks(args: &Args<scenario::Part>) -> Outcome<bool> {
    if !cfg!(feature = "peers") {
        return Err("this was built without the peers; run it by `cargo xtask bench locks`".into());
    }
    let mut bench = Bench::start(args.pace)?;
    match &args.task {
        Task::Sweep { .. } => sweep::run(&mut bench).map(|()| true),
        Task::Figures { only, check } => {
            let figures = scenario::run(&mut bench, only)?;
            Ok(report::summary(&figures, &bench) || !check)
        }
    }
}

/// The same of the rate limiter. Peers that are not there are named.
fn limits(args: &Args<quota::Part>) -> Outcome<bool> {
    let mut bench = Bench::start(args.pace)?;
    match &args.task {
        Task::Sweep { .. } => quota::sweep(&mut bench).map(|()| true),
        Task::Figures { only, check } => {
            let figures = quota::run(&mut bench, only)?;
            Ok(report::summary(&figures, &bench) || !check)
        }
    }
}

/// The same of deferral, also of the peers.
fn deferral(args: &Args<deferred::Part>) -> Outcome<bool> {
    let mut stage = Stage::start(args.pace, args.quick)?;
    match &args.task {
        Task::Sweep { only } => deferred::sweep(&mut stage, only).map(|()| true),
        Task::Figures { only, check } => {
            let figures = deferred::run(&mut stage, only)?;
            Ok(report::summary(&figures, &stage.bench) || !check)
        }
    }
}
