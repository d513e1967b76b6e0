//! Finds or installs `redis-server`, the only condition of the tests that cargo does not provide.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::{shell, system_package::SystemPackage};

const REDIS_SERVER: SystemPackage = SystemPackage {
    program: "redis-server",
    apt: &["redis-server"],
    dnf: &["redis"],
    apk: &["redis"],
    // Arch replaces Redis with Valkey, which provides `redis-server` as a link.
    pacman: &["valkey"],
    brew: &["redis"],
};

/// Path of the program that tests start as `redis-server`: another version, or Valkey.
const SERVER_VARIABLE: &str = "LOCKGATE_TESTS_SERVER";

const MIN_VERSION: (u32, u32) = (6, 2);

/// Installs `redis-server` if it is missing, and fails if its version is too old. The error is one
/// sentence that says how to fix it.
pub(crate) fn ensure_installed() -> Result<(), String> {
    if !shell::is_on_path("redis-server") {
        install_server()?;
    }
    let output = shell::capture_stdout(shell::workspace_command("redis-server", ["--version"]))
        .unwrap_or_default();
    match parse_version(&output) {
        Some(found) if found >= MIN_VERSION => Ok(()),
        Some((major, minor)) => Err(format!(
            "The redis-server on PATH is {major}.{minor}; install Redis {}.{} or newer, or Valkey.",
            MIN_VERSION.0, MIN_VERSION.1
        )),
        None => Err("The redis-server on PATH does not tell its version; install Redis 6.2 or newer, or Valkey.".into()),
    }
}

/// Set for tests if the server of [`SERVER_VARIABLE`] was built without TLS, so that they skip TLS.
const WITHOUT_TLS_VARIABLE: &str = "LOCKGATE_TESTS_WITHOUT_TLS";

/// Environment variables of the tests.
pub(crate) type TestEnvironment = Vec<(&'static str, OsString)>;

/// A `PATH` on which `redis-server` is the server of [`SERVER_VARIABLE`]. Empty if the variable is
/// not set.
pub(crate) fn chosen_server_environment() -> Result<TestEnvironment, String> {
    let Some(server) = env::var_os(SERVER_VARIABLE) else { return Ok(Vec::new()) };
    let to_message = |error| format!("{SERVER_VARIABLE}: {}: {error}", server.display());
    let server = PathBuf::from(&server).canonicalize().map_err(to_message)?;
    // One folder per server, so that runs on two servers can be concurrent.
    let folder: String = server.display().to_string().replace(['/', '\\', ':'], "-");
    let folder =
        shell::workspace_root().join("target/tests-server").join(folder.trim_start_matches('-'));
    fs::create_dir_all(&folder).map_err(to_message)?;
    let name = folder.join("redis-server");
    let _ = fs::remove_file(&name);
    link_server_program(&server, &name).map_err(to_message)?;
    let version =
        shell::capture_stdout(shell::workspace_command(&name.to_string_lossy(), ["--version"]));
    println!("The tests start {}: {}", server.display(), version.unwrap_or_default().trim());
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([folder].into_iter().chain(env::split_paths(&path)));
    let mut environment = vec![("PATH", path.map_err(|error| error.to_string())?)];
    if !supports_tls(&server) {
        println!("It was built without TLS: the tests that need TLS return at once.");
        environment.push((WITHOUT_TLS_VARIABLE, "1".into()));
    }
    Ok(environment)
}

/// Starts the server with TLS and without a certificate, which every server refuses. The error
/// shows a server without TLS: Redis does not know the setting, Valkey lacks the module.
fn supports_tls(server: &Path) -> bool {
    let mut command =
        shell::workspace_command(&server.to_string_lossy(), ["--port", "0", "--tls-port", "1"]);
    let Ok(output) = command.stdin(Stdio::null()).output() else { return true };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    !["Bad directive", "Failed finding TLS support"].iter().any(|error| text.contains(error))
}

#[cfg(unix)]
fn link_server_program(server: &Path, name: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(server, name)
}

#[cfg(not(unix))]
fn link_server_program(server: &Path, name: &Path) -> std::io::Result<()> {
    fs::copy(server, name.with_extension(env::consts::EXE_EXTENSION)).map(drop)
}

fn install_server() -> Result<(), String> {
    REDIS_SERVER.install().map_err(|problem| manual_install_message(&problem))
}

fn manual_install_message(problem: &str) -> String {
    format!(
        "redis-server {problem}: install Redis 6.2 or newer, or Valkey, so that `redis-server` is on PATH, and run this again."
    )
}

/// Parses `Redis server v=7.0.15 sha=...`, and Valkey's line of the same form.
fn parse_version(output: &str) -> Option<(u32, u32)> {
    let number = output.split_whitespace().find_map(|part| part.strip_prefix("v="))?;
    let mut parts = number.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_and_valkey_versions_are_parsed() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=1";
        assert_eq!(parse_version(redis), Some((7, 0)));
        assert_eq!(parse_version("Valkey server v=8.1.3 sha=0:0"), Some((8, 1)));
        assert_eq!(parse_version("redis"), None);
        assert!(parse_version("Redis server v=6.0.16").unwrap() < MIN_VERSION);
    }
}
