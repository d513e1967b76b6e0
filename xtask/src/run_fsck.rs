//! `cargo xtask fsck`: starts `lockgate-fsck`.

use std::process::ExitCode;

use crate::shell;

/// Returns the exit code of `lockgate-fsck`.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    const FSCK_CARGO_ARGS: &[&str] =
        &["run", "--quiet", "--package", "lockgate-cli", "--bin", "lockgate-fsck", "--"];
    let mut command = shell::cargo_command([FSCK_CARGO_ARGS, args].concat());
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
