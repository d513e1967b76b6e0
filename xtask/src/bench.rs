//! `cargo xtask bench`: builds the benchmarks as they are meant to run, and runs one.

use std::{env, fs, path::PathBuf, process::ExitCode};

use crate::{redis_server, shell};

/// The one place that compiles the peers: they are no business of tests, lints and CI. One of them declares
/// a newer Rust than it needs.
const BUILT: [&str; 4] = ["--release", "--package", "lockgate-benches", "--ignore-rust-version"];
const PEERS: [&str; 2] = ["--features", "peers"];
/// The queues are no part of them: each is a feature of its own, so that one that does not build is the only
/// one missing.
const QUEUES: [&str; 2] = ["queue-apalis", "queue-bullmq"];

const USAGE: &str =
    "usage: cargo xtask bench locks|http|defer; `--help` after each tells its options";

/// Its exit code is ours: 0, or 1 for a figure that falls short, or 2 for what was asked wrongly.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    match args {
        ["locks" | "http" | "defer", ..] => ready(args).unwrap_or_else(|sentence| {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }),
        ["help" | "--help" | "-h"] => crate::told(USAGE),
        _ => crate::refused(USAGE),
    }
}

fn ready(args: &[&str]) -> Result<ExitCode, String> {
    let program = ["--bin", "lockgate-benches", "--"];
    // The options are told without a server, and without the peers.
    let built = if matches!(args, [_, "--help" | "-h"]) {
        BUILT.to_vec()
    } else {
        redis_server::ensure()?;
        built(args)?
    };
    let mut command = shell::cargo([&["run", "--quiet"], &built[..], &program, args].concat());
    shell::announce(&command);
    let code = command.status().ok().and_then(|status| status.code());
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Builds all binaries, of which the one that conducts starts the others, and says with which arguments.
/// A peer that does not build here costs the figures that need it, and no others.
fn built(args: &[&str]) -> Result<Vec<&'static str>, String> {
    if args.first() == Some(&"defer") {
        return queues();
    }
    if args.first() == Some(&"http") && args.contains(&"--sweep") {
        second()?;
    }
    let with_peers = [&BUILT[..], &PEERS].concat();
    let Err(sentence) = shell::run(shell::cargo([&["build"], &with_peers[..]].concat())) else {
        return Ok(with_peers);
    };
    if args.first() == Some(&"locks") {
        return Err(sentence);
    }
    eprintln!("THE PEERS DO NOT BUILD HERE, as the compiler says above: this runs without them.");
    shell::run(shell::cargo([&["build"], &BUILT[..]].concat()))?;
    Ok(BUILT.to_vec())
}

/// As many queues as build here.
fn queues() -> Result<Vec<&'static str>, String> {
    let with = |queues: &[&'static str]| {
        let features = queues.iter().flat_map(|queue| ["--features", *queue]);
        BUILT.into_iter().chain(features).collect::<Vec<_>>()
    };
    let build = |arguments: &[&str]| shell::run(shell::cargo([&["build"], arguments].concat()));
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

/// The same program with the other kind of tower-rate-limiter in it, beside where the first will lie.
fn second() -> Result<(), String> {
    let built = [&["build"], &BUILT[..], &["--features", "peers-lua"]].concat();
    shell::run(shell::cargo([&built[..], &["--bin", "lockgate-benches"]].concat()))?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let release = shell::root().join(target).join("release");
    let name = |name: &str| release.join(format!("{name}{}", env::consts::EXE_SUFFIX));
    let copied = fs::copy(name("lockgate-benches"), name("lockgate-benches-lua"));
    copied.map(drop).map_err(|error| format!("lockgate-benches could not be copied: {error}"))
}
