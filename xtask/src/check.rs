//! `cargo xtask check`: everything about the code that is not its behaviour.

use std::{env, process::ExitCode};

use crate::{
    imports, licences,
    metadata::{LIBRARIES, Metadata},
    msrv, shell,
};

type Step = (&'static str, fn(&Metadata) -> Result<(), String>);

/// The cheap ones first. All run, so that one look tells everything there is to mend.
const STEPS: [Step; 7] = [
    ("fmt", |_| shell::run(shell::cargo(["fmt", "--all", "--check"]))),
    ("imports", imports::check),
    ("msrv", msrv::check),
    ("deny", deny),
    ("clippy", |_| lints()),
    ("features", features),
    ("docs", |_| docs()),
];

pub(crate) fn run() -> ExitCode {
    let metadata = match Metadata::load() {
        Ok(metadata) => metadata,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        println!("\n== {name}");
        if let Err(sentence) = step(&metadata) {
            eprintln!("{sentence}");
            failed.push(name);
        }
    }
    println!();
    if failed.is_empty() {
        println!("check: all of {} steps passed", STEPS.len());
        ExitCode::SUCCESS
    } else {
        println!("check: failed: {}", failed.join(", "));
        ExitCode::FAILURE
    }
}

/// Warnings are denied by an argument to clippy and not by `RUSTFLAGS`, which would throw away
/// everything built before.
fn clippy(selection: &[&str]) -> Result<(), String> {
    shell::run(shell::cargo([&["clippy"], selection, &["--", "-D", "warnings"]].concat()))
}

/// All targets: as the tests are built, with every feature, and the benchmarks, whose features are the peers, without.
fn lints() -> Result<(), String> {
    let benches = "lockgate-benches";
    clippy(&["--workspace", "--exclude", benches, "--all-targets", "--all-features"])?;
    clippy(&["-p", benches, "--all-targets"])
}

/// Each library without features, and with each of its features alone.
fn features(metadata: &Metadata) -> Result<(), String> {
    let mut failed = Vec::new();
    for library in LIBRARIES {
        let features = metadata.features(library)?;
        for feature in [""].into_iter().chain(features.iter().map(String::as_str)) {
            let bare = ["-p", library, "--lib", "--no-default-features"];
            let with: &[&str] = if feature.is_empty() { &[] } else { &["--features", feature] };
            if clippy(&[&bare, with].concat()).is_err() {
                failed.push(format!("{library} [{feature}]"));
            }
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("do not build alone: {}", failed.join(", ")))
    }
}

/// The libraries as docs.rs shows them, with all features; the rest without them: those of the benchmarks are
/// the peers.
fn docs() -> Result<(), String> {
    let libraries: Vec<_> = LIBRARIES.iter().flat_map(|name| ["-p", name]).collect();
    doc(&[&libraries[..], &["--all-features"]].concat())?;
    let others: Vec<_> = LIBRARIES.iter().flat_map(|name| ["--exclude", name]).collect();
    doc(&[&["--workspace"], &others[..]].concat())
}

fn doc(selection: &[&str]) -> Result<(), String> {
    let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
    let mut command = shell::cargo([&["doc", "--no-deps"], selection].concat());
    command.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim());
    shell::run(command)
}

fn deny(metadata: &Metadata) -> Result<(), String> {
    if !shell::on_path("cargo-deny") {
        println!(
            "cargo-deny is not installed: of deny.toml, the licences and the origin of what is shipped are looked at. \
             Skipped: advisories, yanked and double versions, and what only tests need."
        );
        return licences::check(metadata);
    }
    shell::run(shell::cargo(["deny", "check"]))
}
