//! The benchmarks of lockgate, beside the peers named in each. `cargo xtask bench` builds and runs this;
//! README.md says what is measured, how, and how to read it.
//!
//! One binary is all the processes of a run: the one that was started conducts, and starts itself again
//! as worker, holder, server or load (see [`process`]), each tied to its life.

mod args;
mod bench;
mod clock;
mod contest;
mod contestant;
mod figure;
mod holder;
mod http;
mod lifeline;
mod outcome;
mod plan;
mod process;
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
    args::{Args, Task},
    bench::Bench,
    outcome::Outcome,
};

const USAGE: &str = "\
usage: cargo xtask bench locks [--check] [--rounds N] [--only 1,2,3,4,5,memory] [--quick]
       cargo xtask bench locks --sweep

  --check     exit 1 if a numbered figure falls short, and name it; needs at least 9 rounds
  --rounds N  alternating rounds of each comparison; default 9
  --only      these figures alone
  --quick     3 rounds of short windows, to see that it runs: nothing to be judged by
  --sweep     look for the retry delay that suits each peer best, and write benches/SWEEP.md";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["worker", plan] => worker::main(plan).map(|()| true),
        ["holder", plan] => holder::main(plan).map(|()| true),
        ["server", plan] => http::server::main(plan).map(|()| true),
        ["load", plan] => http::load::main(plan).map(|()| true),
        ["locks", rest @ ..] => match Args::read(rest) {
            Ok(args) => locks(&args),
            Err(sentence) => return refused(&sentence),
        },
        [name @ ("http" | "defer"), ..] => {
            return refused(&format!("`bench {name}` is not there yet: it comes with its engine."));
        }
        _ => return refused(USAGE),
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

/// 2 is for what was asked wrongly or cannot be asked yet; 1 is for what was found wanting.
fn refused(sentence: &str) -> ExitCode {
    eprintln!("{sentence}");
    ExitCode::from(2)
}

/// Whether nothing that was to be checked falls short.
fn locks(args: &Args) -> Outcome<bool> {
    if !cfg!(feature = "peers") {
        return Err("this was built without the peers; run it by `cargo xtask bench locks`".into());
    }
    let mut bench = Bench::start(args.pace)?;
    match &args.task {
        Task::Sweep => sweep::run(&mut bench).map(|()| true),
        Task::Figures { only, check } => {
            let figures = scenario::run(&mut bench, only)?;
            Ok(report::summary(&figures, &bench.faults) || !check)
        }
    }
}
