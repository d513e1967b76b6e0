//! `cargo xtask check`: all checks of the code apart from its tests.

use std::{env, process::ExitCode};

use crate::{
    cargo_tool::{self, CARGO_DENY, CARGO_HACK, MDBOOK},
    import_direction_check, language_check,
    optional_program::PROMTOOL,
    shell,
    workspace_metadata::{LIBRARY_PACKAGES, WorkspaceMetadata},
};

/// Name of a step, and its function.
type CheckStep = (&'static str, fn(&WorkspaceMetadata) -> Result<(), String>);

/// Steps, cheapest first. All of them run, so that one run shows every error.
const DEFAULT_STEPS: [CheckStep; 10] = [
    ("fmt", |_| shell::run(shell::cargo_command(["fmt", "--all", "--check"]))),
    ("imports", import_direction_check::check),
    ("language", language_check::check),
    ("deny", |_| check_dependencies()),
    ("clippy", |_| run_clippy(&["--workspace", "--all-targets", "--all-features"])),
    ("features", |_| check_features()),
    ("docs", |_| build_api_docs()),
    ("book", |_| build_book()),
    ("model", |_| check_wait_queue_model()),
    ("alerts", |_| check_alert_rules()),
];

/// Additional steps of `check --full`, which take longer and find less.
const FULL_CHECK_STEPS: [CheckStep; 3] = [
    ("features of the integrations", |_| check_integration_features()),
    ("msrv", |_| check_msrv()),
    ("benches", |_| check_benches()),
];

pub(crate) fn run(full: bool) -> ExitCode {
    let metadata = match WorkspaceMetadata::load() {
        Ok(metadata) => metadata,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = Vec::new();
    let additional_steps = if full { &FULL_CHECK_STEPS[..] } else { &[] };
    let steps = [&DEFAULT_STEPS, additional_steps].concat();
    for (name, step) in &steps {
        println!("\n== {name}");
        if let Err(message) = step(&metadata) {
            eprintln!("{message}");
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

/// Denies warnings with a clippy argument. `RUSTFLAGS` would invalidate the whole build cache.
fn run_clippy(selection: &[&str]) -> Result<(), String> {
    shell::run(shell::cargo_command([&["clippy"], selection, &["--", "-D", "warnings"]].concat()))
}

/// Checks the library without features and with each feature alone, and the integrations without
/// features.
fn check_features() -> Result<(), String> {
    check_each_feature(&LIBRARY_PACKAGES[..1])?;
    let integrations =
        ["--lib", "--no-default-features", "-p", LIBRARY_PACKAGES[1], "-p", LIBRARY_PACKAGES[2]];
    run_clippy(&integrations)
}

/// Checks each feature of the integrations. They are few lines that re-export parts of the library.
fn check_integration_features() -> Result<(), String> {
    check_each_feature(&LIBRARY_PACKAGES[1..])
}

fn check_each_feature(libraries: &[&str]) -> Result<(), String> {
    cargo_tool::ensure_installed(&CARGO_HACK)?;
    let packages = libraries.iter().flat_map(|library| ["-p", library]);
    let each = ["--lib", "--each-feature", "--exclude-all-features", "--keep-going"];
    let front = ["hack", "clippy"].into_iter().chain(packages).chain(each);
    shell::run(shell::cargo_command(front.chain(["--", "-D", "warnings"])))
}

/// Builds with the oldest supported Rust, which cargo-hack installs with rustup. In the other
/// checks clippy's `incompatible_msrv` rejects newer parts of std.
fn check_msrv() -> Result<(), String> {
    cargo_tool::ensure_installed(&CARGO_HACK)?;
    let packages = LIBRARY_PACKAGES.iter().flat_map(|library| ["-p", library]);
    let check = ["hack", "check", "--rust-version", "--lib", "--all-features"];
    shell::run(shell::cargo_command(check.into_iter().chain(packages)))
}

/// Lints the benchmarks, which are a separate workspace. Their features are the peers, which are
/// not linted.
fn check_benches() -> Result<(), String> {
    let target = shell::target_dir();
    let manifest = ["--manifest-path", "benches/Cargo.toml"];
    shell::run(shell::cargo_command([&["fmt"], &manifest[..], &["--check"]].concat()))?;
    let mut command = shell::cargo_command([&["clippy", "--all-targets"], &manifest[..]].concat());
    command.arg("--target-dir").arg(target).args(["--", "-D", "warnings"]);
    shell::run(command)
}

/// One command for all packages, so that dependencies are resolved and compiled once.
fn build_api_docs() -> Result<(), String> {
    let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
    let mut command = shell::cargo_command(["doc", "--no-deps", "--workspace", "--all-features"]);
    command.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim());
    shell::run(command)
}

/// Builds the pages of `docs/` into `target/book`. The tests compile their code.
fn build_book() -> Result<(), String> {
    cargo_tool::ensure_installed(&MDBOOK)?;
    shell::run(shell::workspace_command("mdbook", ["build", "docs"]))
}

/// Runs the model of a lock and its wait queue, which explores every reachable state in about a
/// minute.
fn check_wait_queue_model() -> Result<(), String> {
    const MODEL_SCRIPT: &str = "tests/model/lock_queue.py";
    if !shell::is_on_path("python3") {
        return Err(format!(
            "python3 is not installed: {MODEL_SCRIPT} was not run; install Python 3"
        ));
    }
    shell::run(shell::workspace_command("python3", [MODEL_SCRIPT]))
}

/// Checks the alert rules, and runs their tests.
fn check_alert_rules() -> Result<(), String> {
    if let (_, Some(message)) = PROMTOOL.plan()? {
        println!("{message}");
        return Ok(());
    }
    let promtool = |args| shell::run(shell::workspace_command("promtool", args));
    promtool(["check", "rules", "ops/prometheus/alerts.yml"])?;
    promtool(["test", "rules", "ops/prometheus/alerts_test.yml"])
}

/// Checks all of `deny.toml`. Advisories need a repository that some machines cannot reach.
fn check_dependencies() -> Result<(), String> {
    cargo_tool::ensure_installed(&CARGO_DENY)?;
    let check = ["deny", "check", "--hide-inclusion-graph"];
    shell::run(shell::cargo_command([&check[..], &["bans", "licenses", "sources"]].concat()))?;
    if shell::capture_stdout(shell::cargo_command(["deny", "fetch", "db"])).is_none() {
        println!(
            "Skipped: advisories and yanked versions; the advisory database can't be fetched."
        );
        return Ok(());
    }
    shell::run(shell::cargo_command([&check[..], &["--disable-fetch", "advisories"]].concat()))
}
