//! The tasks of this repository, for people and for CI: `cargo xtask <task>`.

mod bench;
mod check;
mod faults;
mod fsck;
mod imports;
mod metadata;
mod msrv;
mod redis_server;
mod shell;
mod summary;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  test [-- ARGS]  run every test (unit, conformance, scenario, property, doc); installs redis-server
                  if it is missing; ARGS go to `cargo test`
  check           formatting, lints, docs, each feature alone, MSRV, direction of imports, licences
  bench NAME      the lock engine (`locks`) or the rate limiter (`http`) beside its peers, by figures
                  with a line to reach; `bench NAME --help` tells the options; no `defer` yet
  faults [--seconds N] [--seed N]
                  processes that are killed, stopped and cut off hammer a few locks for N seconds
                  (60), and what they saw is checked: no two holders, fences grow, nothing is left
  fsck URL [--repair]
                  looks through a namespace of a store for what belongs nowhere, and mends it";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["test"] => test::run(&[]),
        ["test", "--", rest @ ..] => test::run(rest),
        ["check"] => check::run(),
        ["bench", rest @ ..] => bench::run(rest),
        ["faults", rest @ ..] => faults::run(rest),
        ["fsck", rest @ ..] => fsck::run(rest),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => later(USAGE),
    }
}

/// Exit code 2 is for what was asked wrongly or cannot be asked yet; 1 is for what was found wanting.
fn later(sentence: &str) -> ExitCode {
    eprintln!("{sentence}");
    ExitCode::from(2)
}
