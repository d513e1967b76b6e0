//! `cargo xtask faults`: the history check, for as long as is wanted.

use std::process::ExitCode;

use crate::{redis_server, shell};

/// Its exit code is ours: 0, or 1 for a check that failed, or 2 for what was asked wrongly.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    if let Err(sentence) = redis_server::ensure() {
        eprintln!("{sentence}");
        return ExitCode::FAILURE;
    }
    let program =
        ["run", "--quiet", "--package", "lockgate-tests", "--bin", "lockgate-faults", "--"];
    let mut command = shell::cargo([&program, args].concat());
    shell::announce(&command);
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
