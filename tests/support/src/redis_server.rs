//! `RedisServer`: a Redis server that a test starts.
//!
//! A small supervising shell runs the server and kills it when its own input closes. So the server
//! ends with the test process, even after an abort or a kill.

use std::{
    io::{self, BufRead as _, BufReader},
    net::Ipv4Addr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockgate::Store;
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::{net::TcpSocket, sync::OnceCell};
use uuid::Uuid;

use crate::{
    command_stats,
    wait::{TEST_TIMEOUT, eventually},
};

const SUPERVISOR_SCRIPT: &str = r#"
redis-server "$@" >/dev/null 2>&1 &
echo $!
cat >/dev/null
kill -CONT $! 2>/dev/null
kill -KILL $! 2>/dev/null
wait $! 2>/dev/null
for name; do case $name in lockgate-test-*.conf) rm -f "${TMPDIR:-/tmp}/$name";; esac; done
"#;

/// Longest start time of a server.
const START_TIMEOUT: Duration = Duration::from_secs(4);

/// One `redis-server` on a free port, without persistence by default.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    options: RedisServerOptions,
    /// `None` if another process started the server.
    supervisor: Option<Child>,
    /// Process id of the current server process.
    pid: Arc<AtomicU32>,
    /// Script calls that were counted before the last restart.
    calls_before_restart: u64,
}

/// Start options of a server.
#[derive(Debug, Clone, Default)]
struct RedisServerOptions {
    password: Option<String>,
    /// Folder of the append-only file, and its fsync policy.
    append_log: Option<(PathBuf, &'static str)>,
    /// True if the server is a cluster node.
    cluster_enabled: bool,
    /// Further arguments.
    extra_args: Vec<String>,
}

/// Returns the server that the tests of this process share, each in its own namespace: that of
/// `cargo xtask test`, or one that this process starts.
pub async fn shared_server() -> &'static RedisServer {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    SERVER
        .get_or_init(async || match std::env::var("LOCKGATE_TESTS_SINGLE") {
            Ok(port) => RedisServer::attach(port.parse().expect("a port")).await,
            Err(_) => RedisServer::start().await,
        })
        .await
}

impl RedisServer {
    /// Starts a server and waits until it responds.
    pub async fn start() -> Self {
        Self::start_with_options(RedisServerOptions::default()).await
    }

    /// Starts a server with an append-only file, so that its data survive a kill. With `always` it
    /// writes before it replies, with `everysec` once a second.
    ///
    /// # Panics
    ///
    /// If its folder cannot be created.
    pub async fn start_with_append_log(fsync: &'static str) -> Self {
        Self::start_with_append_log_and_args(fsync, &[]).await
    }

    /// Like [`start_with_append_log`](Self::start_with_append_log), with further arguments.
    ///
    /// # Panics
    ///
    /// If its folder cannot be created.
    pub async fn start_with_append_log_and_args(fsync: &'static str, arguments: &[&str]) -> Self {
        let name = format!("lockgate-redis-{}", Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder for the server");
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let log = Some((folder, fsync));
        Self::start_with_options(RedisServerOptions {
            append_log: log,
            extra_args: arguments,
            ..RedisServerOptions::default()
        })
        .await
    }

    /// Starts a server with this password.
    pub async fn start_with_password(password: &str) -> Self {
        Self::start_with_options(RedisServerOptions {
            password: Some(password.to_owned()),
            ..RedisServerOptions::default()
        })
        .await
    }

    /// Starts a server that can join a cluster, with further arguments.
    pub(crate) async fn start_cluster_node(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self::start_with_options(RedisServerOptions {
            cluster_enabled: true,
            extra_args: arguments,
            ..RedisServerOptions::default()
        })
        .await
    }

    /// Tries other ports if another process takes the first one.
    async fn start_with_options(options: RedisServerOptions) -> Self {
        for _ in 0..5 {
            let server = Self::spawn(options.clone());
            if tokio::time::timeout(START_TIMEOUT, server.wait_until_up()).await.is_ok() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    /// Reserves a port without a server; [`restart`](Self::restart) starts it.
    #[must_use]
    pub fn not_running() -> Self {
        let mut server = Self::spawn(RedisServerOptions::default());
        server.terminate();
        server
    }

    fn spawn(options: RedisServerOptions) -> Self {
        let port = free_port();
        let (supervisor, pid) = spawn_redis_server(port, &options);
        Self {
            port,
            options,
            supervisor: Some(supervisor),
            pid: Arc::new(pid.into()),
            calls_before_restart: 0,
        }
    }

    /// Attaches to a server on this port, which continues after this value is dropped.
    pub(crate) async fn attach(port: u16) -> Self {
        let options = RedisServerOptions::default();
        let server =
            Self { port, options, supervisor: None, pid: Arc::default(), calls_before_restart: 0 };
        let client = server.client().expect("a port");
        let connection =
            client.get_multiplexed_async_connection_with_config(&long_timeout_config()).await;
        let mut connection = connection.expect("the server answers");
        let mut info = redis::cmd("INFO");
        let info = info.arg("server").query_async::<String>(&mut connection).await;
        let info = info.expect("the server answers");
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        let pid = pid.and_then(|pid| pid.trim().parse().ok()).expect("a process id");
        server.pid.store(pid, Ordering::Relaxed);
        server
    }

    /// Returns the URL with a namespace.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        let user = self.options.password.as_ref();
        let user = user.map_or_else(String::new, |password| format!(":{password}@"));
        format!("redis://{user}127.0.0.1:{}/?ns={namespace}", self.port)
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of script calls since the first start, across restarts. A few calls at
    /// the moment of a kill are not counted.
    #[must_use]
    pub fn script_calls(&self) -> u64 {
        self.calls_before_restart + command_stats::script_calls(self.port).unwrap_or(0)
    }

    /// Kills the server with its data.
    pub fn kill(&mut self) {
        self.calls_before_restart = self.script_calls();
        self.terminate();
    }

    fn terminate(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            // When its input closes, the shell kills the server and then ends.
            drop(supervisor.stdin.take());
            let _ = supervisor.wait();
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Like [`pid`](Self::pid), but follows restarts.
    pub(crate) fn shared_pid(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.pid)
    }

    /// Restarts the server on the same port, empty unless it has an append-only file.
    pub async fn restart(&mut self) {
        self.restart_until_reachable().await;
        eventually("redis-server to have read its log", async || {
            let mut connection = self.connection().await;
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        })
        .await;
    }

    /// Restarts the server and waits until it responds, even if it is still loading its data.
    pub async fn restart_until_reachable(&mut self) {
        let (supervisor, pid) = spawn_redis_server(self.port, &self.options);
        self.supervisor = Some(supervisor);
        self.pid.store(pid, Ordering::Relaxed);
        self.wait_until_up().await;
    }

    /// Pauses the server: it accepts connections and does not respond.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Resumes the server.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(pid).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "no server to send {signal} to");
    }

    /// Pauses a replica and cuts its connection. The master writes without it until it resumes.
    ///
    /// # Panics
    ///
    /// If the master is unavailable.
    pub async fn disconnect_replica(&self, replica: &Self) {
        replica.pause();
        let mut cut = redis::cmd("CLIENT");
        cut.arg("KILL").arg("TYPE").arg("replica");
        let _: i64 = cut.query_async(&mut self.connection().await).await.expect("an answer");
    }

    /// Waits until the replica has all earlier writes of this master. `mark` is a key to write.
    pub async fn wait_for_replica(&self, mark: &str) {
        eventually("the replica to have it all", async || {
            let mut pipe = redis::pipe();
            // `WAIT` counts replicas by the last write of its own connection, which follows all
            // earlier writes.
            pipe.cmd("SET").arg(mark).arg(1).arg("PX").arg(1).ignore();
            pipe.cmd("WAIT").arg(1).arg(500);
            let answer = pipe.query_async(&mut self.connection().await).await;
            answer.is_ok_and(|(replica_count,): (u64,)| replica_count == 1)
        })
        .await;
    }

    /// Returns the keys that should not exist when no lock is in use.
    ///
    /// # Panics
    ///
    /// If the server is unavailable.
    pub async fn leftover_lock_keys(&self, pattern: &str) -> Vec<String> {
        let keys = redis::cmd("KEYS").arg(pattern).query_async(&mut self.connection().await).await;
        let mut keys: Vec<String> = keys.expect("an answer");
        keys.retain(|key| !key.ends_with(":meta") && !key.ends_with("}:f"));
        keys
    }

    /// Opens a connection for the test.
    ///
    /// # Panics
    ///
    /// If the server is unavailable.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.expect("the server answers")
    }

    /// Returns `None` only if the URL is invalid.
    pub(crate) fn client(&self) -> Option<redis::Client> {
        let url = self.url("");
        redis::Client::open(url.split('?').next()?).ok()
    }

    /// Returns `None` if the server is unavailable or another process.
    async fn try_connection(&self) -> Option<MultiplexedConnection> {
        let (client, config) = (self.client()?, long_timeout_config());
        let connect = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connect.await.ok()?;
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("server").query_async(&mut connection).await.ok()?;
        let own_line = format!("process_id:{}", self.pid());
        info.lines().any(|line| line == own_line).then_some(connection)
    }

    async fn wait_until_up(&self) {
        eventually("redis-server to answer", async || self.try_connection().await.is_some()).await;
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.terminate();
        if let Some((folder, _)) = &self.options.append_log {
            let _ = std::fs::remove_dir_all(folder);
        }
        let port = self.port.to_string();
        for file in [dump_file_name(&port), cluster_config_file_name(&port)] {
            let _ = std::fs::remove_file(std::env::temp_dir().join(file));
        }
    }
}

/// Connects a store with a long call timeout, so that a loaded machine is no outage.
///
/// # Panics
///
/// If the URL is invalid.
pub async fn connect_with_long_timeout(url: &str) -> Store {
    let builder = Store::builder(url).call_timeout(Duration::from_secs(10));
    builder.connect().await.expect("the URL is right")
}

/// Long timeouts, so that a loaded machine is no fault of the server.
pub(crate) fn long_timeout_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TEST_TIMEOUT))
        .set_response_timeout(Some(TEST_TIMEOUT))
}

/// Returns a port below the ephemeral range. A client socket could take an ephemeral port before
/// the server does or while the server is down.
#[must_use]
pub fn free_port() -> u16 {
    loop {
        let [high, low, ..] = *Uuid::new_v4().as_bytes();
        let port = 10_000 + u16::from_be_bytes([high, low]) % 10_000;
        // A cluster node uses the port 10,000 above its own for the cluster bus.
        if try_bind_port(port).is_ok() && try_bind_port(port + 10_000).is_ok() {
            return port;
        }
    }
}

/// Tests a port without listening. A child that another thread forks meanwhile inherits the socket
/// until its exec: a listening copy would block the port and accept connections.
fn try_bind_port(port: u16) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    // With `SO_REUSEADDR` the bound socket does not block a listener, and the bind fails if there
    // is one.
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())
}

fn spawn_redis_server(port: u16, options: &RedisServerOptions) -> (Child, u32) {
    let version = Command::new("redis-server").arg("--version").output();
    assert!(
        version.is_ok(),
        "these tests start a redis-server of their own: install Redis, or put it into PATH"
    );
    let port = port.to_string();
    let mut supervisor = Command::new("sh");
    supervisor.args(["-c", SUPERVISOR_SCRIPT, "redis-server", "--port", &port]);
    supervisor.args(["--bind", "127.0.0.1", "--save", ""]);
    match &options.append_log {
        Some((folder, fsync)) => {
            supervisor.args(["--appendonly", "yes", "--appendfsync", fsync]);
            supervisor.args(["--dir".as_ref(), folder.as_os_str()]);
        }
        None => {
            supervisor.args(["--appendonly", "no"]);
            supervisor.args(["--dir".as_ref(), std::env::temp_dir().as_os_str()]);
            // A dump file of another server would be loaded at the start.
            supervisor.args(["--dbfilename", &dump_file_name(&port)]);
        }
    }
    if options.cluster_enabled {
        // A long node timeout, so that a loaded machine causes no failover.
        supervisor.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "30000"]);
        supervisor.args(["--cluster-config-file", &cluster_config_file_name(&port)]);
    }
    if let Some(password) = &options.password {
        supervisor.args(["--requirepass", password]);
    }
    supervisor.args(&options.extra_args);
    spawn_supervised(supervisor)
}

/// Name of the file for the dump that a server without an append-only file writes as a replica.
fn dump_file_name(port: &str) -> String {
    format!("lockgate-test-{}-{port}.rdb", std::process::id())
}

fn cluster_config_file_name(port: &str) -> String {
    format!("lockgate-test-{}-{port}.conf", std::process::id())
}

/// Starts a sentinel with this configuration file, which it also rewrites.
pub(crate) fn spawn_sentinel(file: &std::path::Path) -> Child {
    let mut supervisor = Command::new("sh");
    supervisor.args(["-c", SUPERVISOR_SCRIPT, "redis-server"]).arg(file).arg("--sentinel");
    spawn_supervised(supervisor).0
}

fn spawn_supervised(mut supervisor: Command) -> (Child, u32) {
    supervisor.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut supervisor = supervisor.stderr(Stdio::null()).spawn().expect("a shell");
    let output = supervisor.stdout.take().expect("it is piped");
    let mut line = String::new();
    let _ = BufReader::new(output).read_line(&mut line);
    let pid = line.trim().parse().expect("the shell prints the pid");
    (supervisor, pid)
}
