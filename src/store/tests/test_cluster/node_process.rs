//! A cluster node: a server process that ends with its test.

use std::{
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::net::TcpSocket;

pub(super) struct NodeProcess {
    /// Shell that ends the server when its input is closed or this process has ended. `None` if
    /// another process started the server.
    supervisor: Option<Child>,
    pub(super) port: u16,
    /// Port for TLS connections of nodes and clients.
    tls_port: Option<u16>,
}

impl NodeProcess {
    pub(super) fn spawn(timeout: Duration, args: &[String]) -> Self {
        let port = free_port();
        let tls_port = (!args.is_empty()).then(free_port);
        let directory = temporary_server_directory();
        let mut command = supervised_server_command(&directory);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--cluster-enabled", "yes"]);
        command.args(["--cluster-node-timeout", &timeout.as_millis().to_string()]);
        // If one node fails, the others continue.
        command.args(["--cluster-require-full-coverage", "no"]);
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.args(args);
        if let Some(port) = tls_port {
            command.args(["--tls-port", &port.to_string()]);
        }
        let supervisor = command.spawn().expect("these tests need a shell and a redis-server");
        Self { supervisor: Some(supervisor), port, tls_port }
    }

    pub(super) fn from_port(port: u16) -> Self {
        Self { supervisor: None, port, tls_port: None }
    }

    pub(super) fn peer_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            drop(supervisor.stdin.take());
            let _ = supervisor.wait();
        }
    }
}

/// Sends a signal such as SIGKILL, SIGSTOP or SIGCONT.
pub(crate) fn send_signal(process: &str, name: &str) {
    let status = Command::new("kill").args([name, process]).status();
    assert!(status.expect("kill is there").success());
}

/// Returns the command of a server in this directory. The server ends when its input is closed, or
/// when this process ends in any way.
pub(in super::super) fn supervised_server_command(directory: &Path) -> Command {
    std::fs::create_dir_all(directory).expect("a directory for temporary files");
    let mut command = Command::new("sh");
    let script = r#"d=$1; shift; cd "$d"; redis-server "$@" >/dev/null 2>&1 & cat >/dev/null; kill -9 $!; rm -rf "$d""#;
    command.args(["-c", script, "keeper"]).arg(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

pub(in super::super) fn temporary_server_directory() -> PathBuf {
    std::env::temp_dir().join(format!("lockgate-cluster-{}", uuid::Uuid::new_v4().simple()))
}

/// Returns a free port whose cluster bus port, 10,000 above, is free too. Both are below the range
/// of ephemeral ports.
pub(in crate::store) fn free_port() -> u16 {
    loop {
        let [high, low, ..] = *uuid::Uuid::new_v4().as_bytes();
        let port = 10_000 + u16::from_be_bytes([high, low]) % 10_000;
        if check_port_is_free(port).is_ok() && check_port_is_free(port + 10_000).is_ok() {
            return port;
        }
    }
}

/// Checks a port without listening on it. A child process that another thread forks at this time
/// has a copy of the socket until its exec, and would block the port.
fn check_port_is_free(port: u16) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    // With this option, the bind blocks no later listener, and fails if there is one.
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())
}
