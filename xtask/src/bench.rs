//! `cargo xtask bench`: builds the benchmarks as they are meant to run, and runs one.

use std::process::ExitCode;

use crate::{redis_server, shell};

/// The workspace of the benchmarks. One of the peers declares a newer Rust than it needs.
const BENCH_BUILD_ARGS: [&str; 4] =
    ["--release", "--manifest-path", "benches/Cargo.toml", "--ignore-rust-version"];
const PEER_FEATURE_ARGS: [&str; 2] = ["--features", "peers"];
/// The queues are no part of them: each is a feature of its own, so that one that does not build is the only
/// one missing.
const QUEUE_FEATURES: [&str; 2] = ["queue-apalis", "queue-bullmq"];

/// Its exit code is ours: 0, or 1 for a figure that falls short, or 2 for what was asked wrongly.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    build_and_run(args).unwrap_or_else(|sentence| {
        eprintln!("{sentence}");
        ExitCode::FAILURE
    })
}

fn build_and_run(args: &[&str]) -> Result<ExitCode, String> {
    let is_run = matches!(args.first(), Some(&("locks" | "http" | "defer")));
    // The options are told without a server, and without the peers.
    let with = if is_run && !args.iter().any(|arg| ["--help", "-h"].contains(arg)) {
        redis_server::ensure_installed()?;
        build_for_command(args)?
    } else {
        Vec::new()
    };
    let program = ["--bin", "lockgate-benches", "--"];
    let mut command = bench_cargo_command(&["run", "--quiet"], &with);
    command.args(program).args(args);
    shell::print_command(&command);
    let code = command.status().ok().and_then(|status| status.code());
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn bench_cargo_command(task: &[&str], with: &[&str]) -> std::process::Command {
    let mut command = shell::cargo_command([task, &BENCH_BUILD_ARGS, with].concat());
    // Beside what the library's workspace has built, out of the same directory.
    command.arg("--target-dir").arg(shell::target_dir());
    command
}

/// Builds all binaries, of which the one that conducts starts the others, and says with which arguments.
/// A peer that does not build here costs the figures that need it, and no others.
fn build_for_command(args: &[&str]) -> Result<Vec<&'static str>, String> {
    if args.first() == Some(&"defer") {
        return build_queue_peers();
    }
    let Err(sentence) = shell::run(bench_cargo_command(&["build"], &PEER_FEATURE_ARGS)) else {
        return Ok(PEER_FEATURE_ARGS.to_vec());
    };
    if args.first() == Some(&"locks") {
        return Err(sentence);
    }
    eprintln!("THE PEERS DO NOT BUILD HERE, as the compiler says above: this runs without them.");
    shell::run(bench_cargo_command(&["build"], &[]))?;
    Ok(Vec::new())
}

/// As many queues as build here.
fn build_queue_peers() -> Result<Vec<&'static str>, String> {
    let with = |queues: &[&'static str]| {
        queues.iter().flat_map(|queue| ["--features", *queue]).collect::<Vec<_>>()
    };
    let build = |with: &[&str]| shell::run(bench_cargo_command(&["build"], with));
    if build(&with(&QUEUE_FEATURES)).is_ok() {
        return Ok(with(&QUEUE_FEATURES));
    }
    let (built, not): (Vec<_>, Vec<_>) =
        QUEUE_FEATURES.into_iter().partition(|queue| build(&with(&[queue])).is_ok());
    for queue in not {
        eprintln!("{queue} DOES NOT BUILD HERE, as the compiler says above: this runs without it.");
    }
    let with = with(&built);
    build(&with).map(|()| with)
}
