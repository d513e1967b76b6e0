//! `cargo xtask bench`: builds the benchmarks as they are meant to run, and runs one.

use std::process::ExitCode;

use crate::{redis_server, shell};

/// The workspace of the benchmarks. One of the peers declares a newer Rust than it needs.
const BUILT: [&str; 4] =
    ["--release", "--manifest-path", "benches/Cargo.toml", "--ignore-rust-version"];
const PEERS: [&str; 2] = ["--features", "peers"];
/// The queues are no part of them: each is a feature of its own, so that one that does not build is the only
/// one missing.
const QUEUES: [&str; 2] = ["queue-apalis", "queue-bullmq"];

/// Its exit code is ours: 0, or 1 for a figure that falls short, or 2 for what was asked wrongly.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    ready(args).unwrap_or_else(|sentence| {
        eprintln!("{sentence}");
        ExitCode::FAILURE
    })
}

fn ready(args: &[&str]) -> Result<ExitCode, String> {
    let is_run = matches!(args.first(), Some(&("locks" | "http" | "defer")));
    // The options are told without a server, and without the peers.
    let with = if is_run && !args.iter().any(|arg| ["--help", "-h"].contains(arg)) {
        redis_server::ensure()?;
        built(args)?
    } else {
        Vec::new()
    };
    let program = ["--bin", "lockgate-benches", "--"];
    let mut command = cargo(&["run", "--quiet"], &with);
    command.args(program).args(args);
    shell::announce(&command);
    let code = command.status().ok().and_then(|status| status.code());
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn cargo(task: &[&str], with: &[&str]) -> std::process::Command {
    let mut command = shell::cargo([task, &BUILT, with].concat());
    // Beside what the library's workspace has built, out of the same directory.
    command.arg("--target-dir").arg(shell::target());
    command
}

/// Builds all binaries, of which the one that conducts starts the others, and says with which arguments.
/// A peer that does not build here costs the figures that need it, and no others.
fn built(args: &[&str]) -> Result<Vec<&'static str>, String> {
    if args.first() == Some(&"defer") {
        return queues();
    }
    let Err(sentence) = shell::run(cargo(&["build"], &PEERS)) else {
        return Ok(PEERS.to_vec());
    };
    if args.first() == Some(&"locks") {
        return Err(sentence);
    }
    eprintln!("THE PEERS DO NOT BUILD HERE, as the compiler says above: this runs without them.");
    shell::run(cargo(&["build"], &[]))?;
    Ok(Vec::new())
}

/// As many queues as build here.
fn queues() -> Result<Vec<&'static str>, String> {
    let with = |queues: &[&'static str]| {
        queues.iter().flat_map(|queue| ["--features", *queue]).collect::<Vec<_>>()
    };
    let build = |with: &[&str]| shell::run(cargo(&["build"], with));
    if build(&with(&QUEUES)).is_ok() {
        return Ok(with(&QUEUES));
    }
    let (built, not): (Vec<_>, Vec<_>) =
        QUEUES.into_iter().partition(|queue| build(&with(&[queue])).is_ok());
    for queue in not {
        eprintln!("{queue} DOES NOT BUILD HERE, as the compiler says above: this runs without it.");
    }
    let with = with(&built);
    build(&with).map(|()| with)
}
