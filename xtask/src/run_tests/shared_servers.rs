//! Redis servers shared by all test processes.
//!
//! nextest runs each test in its own process. A test that only needs a namespace uses these
//! servers, so that a run starts four servers and not one per test. The tests read the ports from
//! the environment.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::shell;

/// Read by the helpers in `tests/support/src` and `src/store/tests`.
const SINGLE_PORT_VARIABLE: &str = "LOCKGATE_TESTS_SINGLE";
const CLUSTER_PORTS_VARIABLE: &str = "LOCKGATE_TESTS_CLUSTER";

/// Starts a server in the directory `$1` and stops it when standard input closes, so that no server
/// outlives the task.
const SUPERVISOR_SCRIPT: &str = r#"d=$1; shift; cd "$d"; redis-server "$@" >/dev/null 2>&1 & cat >/dev/null; kill -9 $!; rm -rf "$d""#;

const SLOT_COUNT: usize = 16_384;
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// One single server and a cluster of three masters.
pub(super) struct SharedServers {
    nodes: Vec<SharedServerNode>,
}

struct SharedServerNode {
    supervisor: Child,
    port: u16,
}

impl SharedServers {
    /// Starts the `redis-server` chosen by this environment for each node and waits until all nodes
    /// are ready.
    pub(super) fn start(environment: &[(&str, OsString)]) -> Result<Self, String> {
        let ports = free_ports(4).into_iter().enumerate();
        let nodes = ports.map(|(at, port)| SharedServerNode::spawn(environment, port, at > 0));
        let servers = Self { nodes: nodes.collect::<Result<_, _>>().map_err(start_error)? };
        for node in &servers.nodes {
            wait_until(|| Ok(node.send_command("PING")?.starts_with("+PONG")))
                .map_err(start_error)?;
        }
        servers.form_cluster().map_err(start_error)?;
        Ok(servers)
    }

    /// Sets the port variables of a command.
    pub(super) fn set_port_variables(&self, command: &mut Command) {
        let ports: Vec<_> = self.nodes.iter().map(|node| node.port.to_string()).collect();
        command
            .env(SINGLE_PORT_VARIABLE, &ports[0])
            .env(CLUSTER_PORTS_VARIABLE, ports[1..].join(","));
    }

    fn form_cluster(&self) -> io::Result<()> {
        let masters = &self.nodes[1..];
        for (at, node) in masters.iter().enumerate() {
            let [from, to] = [at, at + 1].map(|n| n * SLOT_COUNT / masters.len());
            // One slot range at a time: servers before 7.0 have no `ADDSLOTSRANGE`.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            node.run_command(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")))?;
            node.run_command(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1))?;
            if at > 0 {
                node.run_command(&format!("CLUSTER MEET 127.0.0.1 {}", masters[0].port))?;
            }
        }
        for node in masters {
            wait_until(|| {
                let info = node.send_command("CLUSTER INFO")?;
                Ok(info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3"))
            })?;
        }
        Ok(())
    }
}

impl SharedServerNode {
    fn spawn(environment: &[(&str, OsString)], port: u16, in_cluster: bool) -> io::Result<Self> {
        let name = format!("lockgate-xtask-{}-{port}", std::process::id());
        let directory = env::temp_dir().join(name);
        fs::create_dir(&directory)?;
        let mut supervisor =
            shell::workspace_command("sh", ["-c", SUPERVISOR_SCRIPT, "supervisor"]);
        supervisor.arg(&directory).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        supervisor.args(["--save", "", "--appendonly", "no"]);
        if in_cluster {
            // A slow machine must not make the cluster mark a node as failed.
            supervisor.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "30000"]);
            supervisor.args(["--cluster-require-full-coverage", "no"]);
        }
        supervisor.envs(environment.iter().cloned());
        supervisor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { supervisor: supervisor.spawn()?, port })
    }

    fn run_command(&self, command: &str) -> io::Result<()> {
        let reply = self.send_command(command)?;
        if reply.starts_with('-') { Err(io::Error::other(reply)) } else { Ok(()) }
    }

    /// Sends an inline command and returns the first reply: a line or a bulk string.
    fn send_command(&self, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(START_TIMEOUT))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut reply = String::new();
        reader.read_line(&mut reply)?;
        if let Some(length) = reply.strip_prefix('$').and_then(|text| text.trim().parse().ok()) {
            let mut bulk = vec![0; length];
            reader.read_exact(&mut bulk)?;
            return Ok(String::from_utf8_lossy(&bulk).into_owned());
        }
        Ok(reply)
    }
}

impl Drop for SharedServerNode {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// Repeats a check until it succeeds. A server that does not listen yet refuses connections.
fn wait_until(done: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match done() {
            Ok(true) => return Ok(()),
            Err(error) if started.elapsed() > START_TIMEOUT => return Err(error),
            Ok(false) if started.elapsed() > START_TIMEOUT => {
                return Err(io::Error::other("they did not become ready"));
            }
            _ => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Free ports below the kernel's ephemeral range. A cluster node also listens on its port plus
/// 10,000.
fn free_ports(number: usize) -> Vec<u16> {
    let first = u16::try_from(std::process::id() % 10_000).unwrap_or(0);
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let candidates = (0..10_000).map(|n| 10_000 + (first + n) % 10_000);
    candidates.filter(|port| free(*port) && free(port + 10_000)).take(number).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn start_error(error: io::Error) -> String {
    format!("the shared redis-servers could not be started: {error}")
}
