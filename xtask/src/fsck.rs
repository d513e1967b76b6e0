//! `cargo xtask fsck`: the crate's own program, from here.

use std::process::ExitCode;

use crate::shell;

/// Its exit code is ours.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    let program = ["run", "--quiet", "--package", "lockgate", "--bin", "lockgate-fsck", "--"];
    let mut command = shell::cargo([&program, args].concat());
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
