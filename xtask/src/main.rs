//! The tasks of this repository, for people and for CI: `cargo xtask <task>`.

mod bench;
mod check;
mod faults;
mod fsck;
mod imports;
mod metadata;
mod mutants;
mod redis_server;
mod shell;
mod summary;
mod test;
mod tools;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

const USAGE: &str = "\
usage: cargo xtask <task>

  test [-- ARGS]  run every test (unit, conformance, scenario, property, doc); installs redis-server
                  and cargo-nextest if they are missing; ARGS go to `cargo nextest run`
  check [--full]  formatting, lints, docs, each feature alone, MSRV, direction of imports, licences, and
                  the model of the lock's queue (needs python3)
  bench NAME      locks (`locks`), the rate limiter (`http`), or deferral and queues (`defer`) beside
                  their peers, by figures with a line to reach; `bench NAME --help` tells the options
  faults [--row 7|l7|d7|q7] [--topology single|sentinel|cluster] [--runs N] [--seconds N] [--seed N]
                  makes every numbered fault of tests/FAULTS.md happen, and prints a table: fault,
                  topology, runs, verdict, worst figure; then random faults for N seconds (20) each
  faults locks|deferred|quota|tasks|soak [--seconds N|--minutes N] [--seed N]
                  random faults alone, and the checks of what all processes wrote down; `soak` is
                  all at once, with memory, files, tasks and keys compared
  mutants [--list] [--only FAULT]..
                  plants faults in a copy of the sources, one after the other, and prints a table: fault,
                  what it breaks, and the test that catches it; fails if none does
  fsck [URL] [--repair]
                  looks through a namespace of a store for what belongs nowhere, and mends it; without
                  a URL that of LOCKGATE_STORE, where its password is not for all to see";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["test"] => test::run(&[]),
        ["test", "--", rest @ ..] => test::run(rest),
        ["check"] => check::run(false),
        ["check", "--full"] => check::run(true),
        ["bench", rest @ ..] => bench::run(rest),
        ["faults", rest @ ..] => faults::run(rest),
        ["mutants", rest @ ..] => mutants::run(rest),
        ["fsck", rest @ ..] => fsck::run(rest),
        ["help" | "--help" | "-h"] => told(USAGE),
        _ => refused(USAGE),
    }
}

/// Whoever has read enough, such as `head`, has closed the pipe: no fault.
fn told(text: &str) -> ExitCode {
    let _ = writeln!(io::stdout(), "{text}");
    ExitCode::SUCCESS
}

/// Exit code 2 is for what was asked wrongly; 1 is for what was found wanting.
fn refused(sentence: &str) -> ExitCode {
    eprintln!("{sentence}");
    ExitCode::from(2)
}
