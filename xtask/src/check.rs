//! `cargo xtask check`: everything about the code that is not its behaviour.

use std::{collections::BTreeMap, env, process::ExitCode};

use crate::{
    imports, licences,
    metadata::{LIBRARIES, Metadata},
    msrv, shell,
};

type Step = (&'static str, fn(&Metadata) -> Result<(), String>);

/// The cheap ones first. All run, so that one look tells everything there is to mend.
const STEPS: [Step; 8] = [
    ("fmt", |_| shell::run(shell::cargo(["fmt", "--all", "--check"]))),
    ("imports", imports::check),
    ("msrv", msrv::check),
    ("deny", deny),
    ("clippy", |_| lints()),
    ("features", features),
    ("docs", |_| docs()),
    ("model", |_| model()),
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

/// As the tests are built, with every feature.
fn lints() -> Result<(), String> {
    clippy(&["--workspace", "--all-targets", "--all-features"])
}

/// The library without features, and with each of its features alone; then the integrations, together, since each hands on
/// the library's feature of the same name.
fn features(metadata: &Metadata) -> Result<(), String> {
    let mut failed = Vec::new();
    for group in [&LIBRARIES[..1], &LIBRARIES[1..]] {
        let mut of_each = BTreeMap::from([(String::new(), Vec::new())]);
        for library in group {
            for feature in metadata.features(library)? {
                // Together they would hide it.
                let same = *library != LIBRARIES[0] && feature != "default";
                if same && !metadata.hands_on(library, &feature, LIBRARIES[0])? {
                    failed.push(format!("{library} [{feature}] without {}'s", LIBRARIES[0]));
                }
                let here = format!("{library}/{feature}");
                of_each.entry(feature).or_insert_with(Vec::new).push(here);
            }
        }
        let packages: Vec<_> = group.iter().flat_map(|library| ["-p", library]).collect();
        for (feature, here) in of_each {
            let with = here.join(",");
            let bare = ["--lib", "--no-default-features", "--features", &with];
            if clippy(&[&packages[..], &bare].concat()).is_err() {
                failed.push(format!("{} [{feature}]", group.join(", ")));
            }
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("do not build alone: {}", failed.join(", ")))
    }
}

/// The libraries as docs.rs shows them, with all features; the rest without them.
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

/// The model of a lock and its wait queue: every reachable state of it, in about a minute.
fn model() -> Result<(), String> {
    const MODEL: &str = "tests/model/lock_line.py";
    if !shell::on_path("python3") {
        return Err(format!("python3 is not installed: {MODEL} was not run; install Python 3"));
    }
    shell::run(shell::program("python3", [MODEL]))
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
