//! `cargo xtask check`: everything about the code that is not its behaviour.

use std::{env, process::ExitCode};

use crate::{
    imports, language,
    metadata::{LIBRARIES, Metadata},
    shell,
    tools::{self, DENY, HACK, MDBOOK},
};

type Step = (&'static str, fn(&Metadata) -> Result<(), String>);

/// The cheap ones first. All run, so that one look tells everything there is to mend.
const STEPS: [Step; 9] = [
    ("fmt", |_| shell::run(shell::cargo(["fmt", "--all", "--check"]))),
    ("imports", imports::check),
    ("language", language::check),
    ("deny", |_| deny()),
    ("clippy", |_| clippy(&["--workspace", "--all-targets", "--all-features"])),
    ("features", |_| features()),
    ("docs", |_| docs()),
    ("book", |_| book()),
    ("model", |_| model()),
];

/// Steps of `check --full`, which find less and take longer.
const MORE: [Step; 3] = [
    ("features of the integrations", |_| more_features()),
    ("msrv", |_| msrv()),
    ("benches", |_| benches()),
];

pub(crate) fn run(full: bool) -> ExitCode {
    let metadata = match Metadata::load() {
        Ok(metadata) => metadata,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = Vec::new();
    let more = if full { &MORE[..] } else { &[] };
    let steps = [&STEPS, more].concat();
    for (name, step) in &steps {
        println!("\n== {name}");
        if let Err(sentence) = step(&metadata) {
            eprintln!("{sentence}");
            failed.push(*name);
        }
    }
    println!();
    if failed.is_empty() {
        println!("check: all of {} steps passed", steps.len());
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

/// The library without features and with each of them alone, and the integrations without any.
fn features() -> Result<(), String> {
    each_feature(&LIBRARIES[..1])?;
    let integrations = ["--lib", "--no-default-features", "-p", LIBRARIES[1], "-p", LIBRARIES[2]];
    clippy(&integrations)
}

/// The features of the integrations re-export parts of the library, and are few lines.
fn more_features() -> Result<(), String> {
    each_feature(&LIBRARIES[1..])
}

fn each_feature(libraries: &[&str]) -> Result<(), String> {
    tools::ensure(&HACK)?;
    let packages = libraries.iter().flat_map(|library| ["-p", library]);
    let each = ["--lib", "--each-feature", "--exclude-all-features", "--keep-going"];
    let front = ["hack", "clippy"].into_iter().chain(packages).chain(each);
    shell::run(shell::cargo(front.chain(["--", "-D", "warnings"])))
}

/// Builds with the oldest Rust, which cargo-hack installs by rustup. In the other checks clippy's `incompatible_msrv`
/// refuses newer parts of std.
fn msrv() -> Result<(), String> {
    tools::ensure(&HACK)?;
    let packages = LIBRARIES.iter().flat_map(|library| ["-p", library]);
    let check = ["hack", "check", "--rust-version", "--lib", "--all-features"];
    shell::run(shell::cargo(check.into_iter().chain(packages)))
}

/// The benchmarks are a workspace of their own. Their features are the peers, which are not linted.
fn benches() -> Result<(), String> {
    let target = shell::target();
    let manifest = ["--manifest-path", "benches/Cargo.toml"];
    shell::run(shell::cargo([&["fmt"], &manifest[..], &["--check"]].concat()))?;
    let mut command = shell::cargo([&["clippy", "--all-targets"], &manifest[..]].concat());
    command.arg("--target-dir").arg(target).args(["--", "-D", "warnings"]);
    shell::run(command)
}

/// One command for all, so that the dependencies are resolved and compiled once.
fn docs() -> Result<(), String> {
    let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
    let mut command = shell::cargo(["doc", "--no-deps", "--workspace", "--all-features"]);
    command.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim());
    shell::run(command)
}

/// The pages of `docs/`, into `target/book`. The tests compile their code.
fn book() -> Result<(), String> {
    tools::ensure(&MDBOOK)?;
    shell::run(shell::program("mdbook", ["build", "docs"]))
}

/// The model of a lock and its wait queue: every reachable state of it, in about a minute.
fn model() -> Result<(), String> {
    const MODEL: &str = "tests/model/lock_line.py";
    if !shell::on_path("python3") {
        return Err(format!("python3 is not installed: {MODEL} was not run; install Python 3"));
    }
    shell::run(shell::program("python3", [MODEL]))
}

/// Everything of `deny.toml`. Advisories are in a repository that not every machine can reach.
fn deny() -> Result<(), String> {
    tools::ensure(&DENY)?;
    let check = ["deny", "check", "--hide-inclusion-graph"];
    shell::run(shell::cargo([&check[..], &["bans", "licenses", "sources"]].concat()))?;
    if shell::output(shell::cargo(["deny", "fetch", "db"])).is_none() {
        println!(
            "Skipped: advisories and yanked versions; the advisory database can't be fetched."
        );
        return Ok(());
    }
    shell::run(shell::cargo([&check[..], &["--disable-fetch", "advisories"]].concat()))
}
