//! `cargo xtask bench`: builds the benchmarks in release mode and runs one.

use std::process::ExitCode;

use crate::{redis_server_installation, shell};

/// Arguments for the workspace of the benchmarks. One peer declares a newer Rust than it needs.
const BENCH_BUILD_ARGS: [&str; 4] =
    ["--release", "--manifest-path", "benches/Cargo.toml", "--ignore-rust-version"];
const PEER_FEATURE_ARGS: [&str; 2] = ["--features", "peers"];
/// Features of the queue peers, apart from `peers`. Each has its own feature, so that a queue that
/// does not build is left out alone.
const QUEUE_FEATURES: [&str; 2] = ["queue-apalis", "queue-bullmq"];
/// Binary with metrics, which all others are built without.
const METERED_BINARY_ARGS: [&str; 4] =
    ["--features", "metrics", "--bin", "lockgate-benches-metered"];

/// Returns the exit code of the program: 0 for success, 1 for a missed figure, 2 for a usage error.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    build_and_run(args).unwrap_or_else(|message| {
        eprintln!("{message}");
        ExitCode::FAILURE
    })
}

fn build_and_run(args: &[&str]) -> Result<ExitCode, String> {
    let is_run = matches!(args.first(), Some(&("locks" | "http" | "defer")));
    // `--help` needs neither a server nor the peers.
    let feature_args = if is_run && !args.iter().any(|arg| ["--help", "-h"].contains(arg)) {
        redis_server_installation::ensure_installed()?;
        build_for_command(args)?
    } else {
        Vec::new()
    };
    let program = ["--bin", "lockgate-benches", "--"];
    let mut command = bench_cargo_command(&["run", "--quiet"], &feature_args);
    command.args(program).args(args);
    shell::print_command(&command);
    let code = command.status().ok().and_then(|status| status.code());
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn bench_cargo_command(task: &[&str], feature_args: &[&str]) -> std::process::Command {
    let mut command = shell::cargo_command([task, &BENCH_BUILD_ARGS, feature_args].concat());
    // Share the target directory of the library's workspace.
    command.arg("--target-dir").arg(shell::target_dir());
    command
}

/// Builds all binaries, because the main one starts the others. Returns the feature arguments. A
/// peer that does not build removes only the figures that need it.
fn build_for_command(args: &[&str]) -> Result<Vec<&'static str>, String> {
    match args.first() {
        Some(&"defer") => return build_queue_peers(),
        Some(&"http") => shell::run(bench_cargo_command(&["build"], &METERED_BINARY_ARGS))?,
        _ => {}
    }
    let Err(message) = shell::run(bench_cargo_command(&["build"], &PEER_FEATURE_ARGS)) else {
        return Ok(PEER_FEATURE_ARGS.to_vec());
    };
    if args.first() == Some(&"locks") {
        return Err(message);
    }
    eprintln!("THE PEERS DO NOT BUILD HERE, as the compiler says above: this runs without them.");
    shell::run(bench_cargo_command(&["build"], &[]))?;
    Ok(Vec::new())
}

/// Builds the queue peers and leaves out those that do not build.
fn build_queue_peers() -> Result<Vec<&'static str>, String> {
    let feature_args = |queues: &[&'static str]| {
        queues.iter().flat_map(|queue| ["--features", *queue]).collect::<Vec<_>>()
    };
    let build = |args: &[&str]| shell::run(bench_cargo_command(&["build"], args));
    if build(&feature_args(&QUEUE_FEATURES)).is_ok() {
        return Ok(feature_args(&QUEUE_FEATURES));
    }
    let (built, failed): (Vec<_>, Vec<_>) =
        QUEUE_FEATURES.into_iter().partition(|queue| build(&feature_args(&[queue])).is_ok());
    for queue in failed {
        eprintln!("{queue} DOES NOT BUILD HERE, as the compiler says above: this runs without it.");
    }
    let args = feature_args(&built);
    build(&args).map(|()| args)
}
