//! Tasks of this repository, for developers and CI: `cargo xtask <task>`.

mod cargo_tool;
#[cfg(test)]
mod document_paths;
mod faults;
mod import_direction_check;
mod language_check;
mod mutants;
mod optional_program;
mod redis_server_installation;
mod run_benchmarks;
mod run_checks;
mod run_tests;
mod shell;
mod source_files;
mod system_package;
mod test_counts;
mod workspace_metadata;

use std::process::ExitCode;

use clap::Parser;

/// The tasks of this repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum XtaskCommand {
    /// Run every test (unit, conformance, scenario, property, doc)
    ///
    /// Installs redis-server, cargo-nextest, Prometheus, and chromedriver with its browser if they
    /// are missing. Without Prometheus or a browser, the tests that need it are skipped.
    Test {
        /// Arguments for `cargo nextest run`, such as filters
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Formatting, imports, language, licences, lints, features, API docs, the book, the model of
    /// the wait queue, the alert rules
    ///
    /// Installs cargo-deny, cargo-hack, mdbook and Prometheus if they are missing. The model needs
    /// python3.
    Check {
        /// Also the oldest Rust, each feature of the integrations, and the lints of the benchmarks
        #[arg(long)]
        full: bool,
    },
    /// Measure the lock engine, the rate limiter, or deferral and queues, and compare them with
    /// peers
    #[command(disable_help_flag = true)]
    Bench {
        /// `locks`, `http` or `defer`, and options; `--help` shows them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Provoke every numbered fault of tests/FAULTS.md and print a table
    Faults(faults::FaultTableArgs),
    /// Plant faults in a copy of the sources, and print the test that catches each one
    Mutants(mutants::MutantsArgs),
}

fn main() -> ExitCode {
    match XtaskCommand::parse() {
        XtaskCommand::Test { args } => run_tests::run(&borrow_args(&args)),
        XtaskCommand::Check { full } => run_checks::run(full),
        XtaskCommand::Bench { args } => run_benchmarks::run(&borrow_args(&args)),
        XtaskCommand::Faults(args) => faults::run(&args),
        XtaskCommand::Mutants(args) => mutants::run(&args),
    }
}

fn borrow_args(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Prints the message and returns exit code 2, for a usage error. Exit code 1 is for a failed
/// check.
fn usage_error(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(2)
}
