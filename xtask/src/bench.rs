//! `cargo xtask bench`: builds the benchmarks as they are meant to run, and runs one.

use std::process::ExitCode;

use crate::{redis_server, shell};

/// The one place that compiles the peers: they are no business of tests, lints and CI.
const BUILT: [&str; 5] = ["--release", "--package", "lockgate-benches", "--features", "peers"];

/// What there is, and what comes with its engine. Which is which, and every option, the benchmarks say.
const NAMES: [&str; 3] = ["locks", "http", "defer"];

/// Its exit code is ours: 0, or 1 for a figure that falls short, or 2 for what was asked wrongly.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    let Some(name) = args.first().filter(|name| NAMES.contains(name)) else {
        eprintln!("usage: cargo xtask bench {}", NAMES.join("|"));
        return ExitCode::from(2);
    };
    if *name == "locks"
        && let Err(sentence) = redis_server::ensure()
    {
        eprintln!("{sentence}");
        return ExitCode::FAILURE;
    }
    // All binaries: the one that conducts starts the others.
    if let Err(sentence) = shell::run(shell::cargo([&["build"], &BUILT[..]].concat())) {
        eprintln!("{sentence}");
        return ExitCode::FAILURE;
    }
    let program = ["--bin", "lockgate-benches", "--"];
    let mut command = shell::cargo([&["run", "--quiet"], &BUILT[..], &program, args].concat());
    shell::announce(&command);
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
