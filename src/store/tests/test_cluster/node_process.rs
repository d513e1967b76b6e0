//! A node: a server that ends with its test.

use std::{
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::net::TcpSocket;

pub(super) struct NodeProcess {
    /// A shell that ends the server when it is told no more, or this process is gone. None if another process
    /// started the server.
    supervisor: Option<Child>,
    pub(super) port: u16,
    /// Where nodes, and clients that want it, talk TLS.
    tls_port: Option<u16>,
}

impl NodeProcess {
    pub(super) fn spawn(timeout: Duration, words: &[String]) -> Self {
        let port = free_port();
        let tls = (!words.is_empty()).then(free_port);
        let directory = temporary_server_directory();
        let mut keeper = supervised_server_command(&directory);
        keeper.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        keeper.args(["--save", "", "--appendonly", "no", "--cluster-enabled", "yes"]);
        keeper.args(["--cluster-node-timeout", &timeout.as_millis().to_string()]);
        // While one node is away, the others go on.
        keeper.args(["--cluster-require-full-coverage", "no"]);
        keeper.args(["--repl-diskless-sync-delay", "0"]);
        keeper.args(words);
        if let Some(port) = tls {
            keeper.args(["--tls-port", &port.to_string()]);
        }
        let keeper = keeper.spawn().expect("these tests need a shell and a redis-server");
        Self { supervisor: Some(keeper), port, tls_port: tls }
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
        if let Some(keeper) = &mut self.supervisor {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

/// SIGKILL, SIGSTOP, SIGCONT.
pub(crate) fn send_signal(process: &str, name: &str) {
    let done = Command::new("kill").args([name, process]).status();
    assert!(done.expect("kill is there").success());
}

/// A server that works in this directory, and outlives neither the pipe nor this process, however that ends.
pub(in super::super) fn supervised_server_command(directory: &Path) -> Command {
    std::fs::create_dir_all(directory).expect("a directory for temporary files");
    let mut keeper = Command::new("sh");
    let script = r#"d=$1; shift; cd "$d"; redis-server "$@" >/dev/null 2>&1 & cat >/dev/null; kill -9 $!; rm -rf "$d""#;
    keeper.args(["-c", script, "keeper"]).arg(directory);
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    keeper
}

pub(in super::super) fn temporary_server_directory() -> PathBuf {
    std::env::temp_dir().join(format!("lockgate-cluster-{}", uuid::Uuid::new_v4().simple()))
}

/// One that is free with the one of the cluster's bus, 10,000 above it; below those that the kernel gives to clients.
pub(in crate::store) fn free_port() -> u16 {
    loop {
        let [high, low, ..] = *uuid::Uuid::new_v4().as_bytes();
        let port = 10_000 + u16::from_be_bytes([high, low]) % 10_000;
        if check_port_is_free(port).is_ok() && check_port_is_free(port + 10_000).is_ok() {
            return port;
        }
    }
}

/// Tries it without listening there. A child that another thread starts at this moment has a copy of the socket until it
/// is its own program, and would keep the port from the server.
fn check_port_is_free(port: u16) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    // Then it is in the way of none who listens, and refused where one does.
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())
}
