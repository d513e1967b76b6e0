//! Finds and runs other programs.
//!
//! Commands are printed before they run. The exceptions are queries, and `fsck`, whose URL may
//! contain a password.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Root of the workspace, independent of the current directory.
pub(crate) fn workspace_root() -> PathBuf {
    let package_dir = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package_dir.parent().map_or(package_dir.clone(), Path::to_path_buf)
}

/// Cargo's build directory.
pub(crate) fn target_dir() -> PathBuf {
    workspace_root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Command for the cargo that started this task, at the root of the workspace.
pub(crate) fn cargo_command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(workspace_root());
    command
}

/// Command for another program, at the root of the workspace.
pub(crate) fn workspace_command<A: AsRef<OsStr>>(
    name: &str,
    args: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(workspace_root());
    command
}

/// Prints the command and runs it with inherited input and output. Returns an error if it fails.
pub(crate) fn run(mut command: Command) -> Result<(), String> {
    print_command(&command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", format_command(&command))),
        Err(error) => Err(format!("`{}` could not be started: {error}", format_command(&command))),
    }
}

/// Returns the standard output of a command, or `None` if it fails or cannot be started.
pub(crate) fn capture_stdout(mut command: Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn print_command(command: &Command) {
    println!("$ {}", format_command(command));
}

/// Returns true if a program of this name is on `PATH`.
pub(crate) fn is_on_path(name: &str) -> bool {
    let name = format!("{name}{}", env::consts::EXE_SUFFIX);
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| is_executable(&folder.join(&name)))
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

fn format_command(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_stem().unwrap_or_default();
    let mut parts: Vec<_> = command
        .get_envs()
        .filter_map(|(key, value)| {
            Some(format!("{}={:?}", key.to_string_lossy(), value?.to_string_lossy()))
        })
        .collect();
    parts.push(name.to_string_lossy().into_owned());
    parts.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    parts.join(" ")
}
