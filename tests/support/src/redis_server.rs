//! `RedisServer`: a Redis server that a test starts.
//!
//! A server is the child of a small shell that kills it when its own input closes. So it ends with the
//! test process, however that ends; nothing else would run after an abort or a kill.

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
for word; do case $word in lockgate-test-*.conf) rm -f "${TMPDIR:-/tmp}/$word";; esac; done
"#;

/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(4);

/// One `redis-server`, on a free port, that keeps nothing on disk.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    options: RedisServerOptions,
    /// None if another process started it.
    supervisor: Option<Child>,
    /// Of whichever process it is at the time.
    pid: Arc<AtomicU32>,
    /// Calls of scripts that it had counted each time that it was ended.
    calls_before_restart: u64,
}

/// What a server is started with.
#[derive(Debug, Clone, Default)]
struct RedisServerOptions {
    password: Option<String>,
    /// Where it keeps its log of commands, and how often it has that on disk.
    append_log: Option<(PathBuf, &'static str)>,
    /// It may be a node of a cluster.
    cluster_enabled: bool,
    /// Further words.
    extra_args: Vec<String>,
}

/// The server that the tests of this process share, each in a namespace of its own: that of the run
/// (`cargo xtask test`), or one that this process starts.
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
    /// Starts one, and returns when it answers.
    pub async fn start() -> Self {
        Self::start_with_options(RedisServerOptions::default()).await
    }

    /// Starts one that writes down what it is told, and is back with it after a kill: `always` before it answers,
    /// `everysec` once a second.
    ///
    /// # Panics
    ///
    /// If there is no folder for it.
    pub async fn start_with_append_log(fsync: &'static str) -> Self {
        Self::start_with_append_log_and_args(fsync, &[]).await
    }

    /// The same, with further words on its command line.
    ///
    /// # Panics
    ///
    /// If there is no folder for it.
    pub async fn start_with_append_log_and_args(fsync: &'static str, words: &[&str]) -> Self {
        let name = format!("lockgate-redis-{}", Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder for the server");
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let log = Some((folder, fsync));
        Self::start_with_options(RedisServerOptions {
            append_log: log,
            extra_args: words,
            ..RedisServerOptions::default()
        })
        .await
    }

    /// Starts one that asks for this password.
    pub async fn start_with_password(password: &str) -> Self {
        Self::start_with_options(RedisServerOptions {
            password: Some(password.to_owned()),
            ..RedisServerOptions::default()
        })
        .await
    }

    /// Starts one that may be a node of a cluster, with further words on its command line.
    pub(crate) async fn start_cluster_node(words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Self::start_with_options(RedisServerOptions {
            cluster_enabled: true,
            extra_args: words,
            ..RedisServerOptions::default()
        })
        .await
    }

    /// On another port if somebody else was faster to take the first one.
    async fn start_with_options(options: RedisServerOptions) -> Self {
        for _ in 0..5 {
            let server = Self::spawn(options.clone());
            if tokio::time::timeout(START_TIMEOUT, server.wait_until_up()).await.is_ok() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    /// A port on which there is none yet: [`restart`](Self::restart) starts it.
    #[must_use]
    pub fn not_running() -> Self {
        let mut server = Self::spawn(RedisServerOptions::default());
        server.terminate();
        server
    }

    fn spawn(options: RedisServerOptions) -> Self {
        let port = free_port();
        let (keeper, pid) = spawn_redis_server(port, &options);
        Self {
            port,
            options,
            supervisor: Some(keeper),
            pid: Arc::new(pid.into()),
            calls_before_restart: 0,
        }
    }

    /// A server that runs on this port, and goes on when this is dropped.
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

    /// Its URL, with a namespace.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        let user = self.options.password.as_ref();
        let user = user.map_or_else(String::new, |password| format!(":{password}@"));
        format!("redis://{user}127.0.0.1:{}/?ns={namespace}", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Calls of scripts since it was first started, however often it was ended since then. A few that came in the
    /// moment of its end are not counted.
    #[must_use]
    pub fn script_calls(&self) -> u64 {
        self.calls_before_restart + command_stats::script_calls(self.port).unwrap_or(0)
    }

    /// Ends it at once, with all that is in it.
    pub fn kill(&mut self) {
        self.calls_before_restart = self.script_calls();
        self.terminate();
    }

    fn terminate(&mut self) {
        if let Some(keeper) = &mut self.supervisor {
            // Its input closes, and the shell ends the server before itself.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// As [`pid`](Self::pid), for those who look again and again: a server that is started again is another process.
    pub(crate) fn shared_pid(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.pid)
    }

    /// Starts it again on the same port, empty unless it has a log.
    pub async fn restart(&mut self) {
        self.restart_until_reachable().await;
        eventually("redis-server to have read its log", async || {
            let mut connection = self.connection().await;
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        })
        .await;
    }

    /// Starts it again, and returns when it answers, if only that it still reads its log.
    pub async fn restart_until_reachable(&mut self) {
        let (keeper, pid) = spawn_redis_server(self.port, &self.options);
        self.supervisor = Some(keeper);
        self.pid.store(pid, Ordering::Relaxed);
        self.wait_until_up().await;
    }

    /// Stops it where it is: it takes connections and answers nothing.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(pid).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "no server to send {signal} to");
    }

    /// Stops a replica where it is and cuts its link: from now on this master writes for itself alone, until the
    /// replica goes on.
    ///
    /// # Panics
    ///
    /// If the master is away.
    pub async fn disconnect_replica(&self, replica: &Self) {
        replica.pause();
        let mut cut = redis::cmd("CLIENT");
        cut.arg("KILL").arg("TYPE").arg("replica");
        let _: i64 = cut.query_async(&mut self.connection().await).await.expect("an answer");
    }

    /// Waits until the replica has all that this master has written until now. `mark`: a key that it may write.
    pub async fn wait_for_replica(&self, mark: &str) {
        eventually("the replica to have it all", async || {
            let mut pipe = redis::pipe();
            // It counts what was written on its own connection, behind all that was written before.
            pipe.cmd("SET").arg(mark).arg(1).arg("PX").arg(1).ignore();
            pipe.cmd("WAIT").arg(1).arg(500);
            let answer = pipe.query_async(&mut self.connection().await).await;
            answer.is_ok_and(|(have,): (u64,)| have == 1)
        })
        .await;
    }

    /// Keys that should not be there once no lock is used any more.
    ///
    /// # Panics
    ///
    /// If it is away.
    pub async fn leftover_lock_keys(&self, pattern: &str) -> Vec<String> {
        let keys = redis::cmd("KEYS").arg(pattern).query_async(&mut self.connection().await).await;
        let mut keys: Vec<String> = keys.expect("an answer");
        keys.retain(|key| !key.ends_with(":meta") && !key.ends_with("}:f"));
        keys
    }

    /// A connection of the test's own.
    ///
    /// # Panics
    ///
    /// If the server is away.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.expect("the server answers")
    }

    /// None only if its URL is wrong.
    pub(crate) fn client(&self) -> Option<redis::Client> {
        let url = self.url("");
        redis::Client::open(url.split('?').next()?).ok()
    }

    /// None if the server is away, or is another one.
    async fn try_connection(&self) -> Option<MultiplexedConnection> {
        let (client, config) = (self.client()?, long_timeout_config());
        let connect = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connect.await.ok()?;
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("server").query_async(&mut connection).await.ok()?;
        let ours = format!("process_id:{}", self.pid());
        info.lines().any(|line| line == ours).then_some(connection)
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

/// Connects a store for which a loaded machine is no outage: its calls have far more time than they take.
///
/// # Panics
///
/// If the URL is wrong.
pub async fn connect_with_long_timeout(url: &str) -> Store {
    let builder = Store::builder(url).call_timeout(Duration::from_secs(10));
    builder.connect().await.expect("the URL is right")
}

/// A machine that has other things to do is no fault of the server's.
pub(crate) fn long_timeout_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TEST_TIMEOUT))
        .set_response_timeout(Some(TEST_TIMEOUT))
}

/// Below those that the kernel gives to clients: one of them could take it before the server does, or
/// while the server is away.
#[must_use]
pub fn free_port() -> u16 {
    loop {
        let [high, low, ..] = *Uuid::new_v4().as_bytes();
        let port = 10_000 + u16::from_be_bytes([high, low]) % 10_000;
        // A node of a cluster talks to others on the port that is 10,000 above its own.
        if try_bind_port(port).is_ok() && try_bind_port(port + 10_000).is_ok() {
            return port;
        }
    }
}

/// Tries it without listening there. A child that another thread starts at this moment has a copy of the socket until it
/// is its own program: it would keep the port from who is to have it, and answer those who look whether he listens.
fn try_bind_port(port: u16) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    // Then it is in the way of none who listens, and refused where one does.
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())
}

fn spawn_redis_server(port: u16, options: &RedisServerOptions) -> (Child, u32) {
    let found = Command::new("redis-server").arg("--version").output();
    assert!(
        found.is_ok(),
        "these tests start a redis-server of their own: install Redis, or put it into PATH"
    );
    let port = port.to_string();
    let mut keeper = Command::new("sh");
    keeper.args(["-c", SUPERVISOR_SCRIPT, "redis-server", "--port", &port]);
    keeper.args(["--bind", "127.0.0.1", "--save", ""]);
    match &options.append_log {
        Some((folder, fsync)) => {
            keeper.args(["--appendonly", "yes", "--appendfsync", fsync]);
            keeper.args(["--dir".as_ref(), folder.as_os_str()]);
        }
        None => {
            keeper.args(["--appendonly", "no"]);
            keeper.args(["--dir".as_ref(), std::env::temp_dir().as_os_str()]);
            // What another server left there would be read at the start.
            keeper.args(["--dbfilename", &dump_file_name(&port)]);
        }
    }
    if options.cluster_enabled {
        // No node is given up, however busy the machine is.
        keeper.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "30000"]);
        keeper.args(["--cluster-config-file", &cluster_config_file_name(&port)]);
    }
    if let Some(password) = &options.password {
        keeper.args(["--requirepass", password]);
    }
    keeper.args(&options.extra_args);
    spawn_supervised(keeper)
}

/// Where a server without a log would write what it has: as a replica it does.
fn dump_file_name(port: &str) -> String {
    format!("lockgate-test-{}-{port}.rdb", std::process::id())
}

fn cluster_config_file_name(port: &str) -> String {
    format!("lockgate-test-{}-{port}.conf", std::process::id())
}

/// A sentinel with this file, which it writes to.
pub(crate) fn spawn_sentinel(file: &std::path::Path) -> Child {
    let mut keeper = Command::new("sh");
    keeper.args(["-c", SUPERVISOR_SCRIPT, "redis-server"]).arg(file).arg("--sentinel");
    spawn_supervised(keeper).0
}

fn spawn_supervised(mut keeper: Command) -> (Child, u32) {
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut keeper = keeper.stderr(Stdio::null()).spawn().expect("a shell");
    let said = keeper.stdout.take().expect("it is piped");
    let mut line = String::new();
    let _ = BufReader::new(said).read_line(&mut line);
    let pid = line.trim().parse().expect("the shell says the pid");
    (keeper, pid)
}
