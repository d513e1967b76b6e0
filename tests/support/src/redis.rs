//! Redis servers of the tests' own.
//!
//! A server is the child of a small shell that ends it when its own input closes. So it goes when the
//! test process does, however that ends; nothing else would come round after an abort or a kill.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::wait::eventually;

const KEEPER: &str = r#"
redis-server "$@" >/dev/null 2>&1 &
echo $!
cat >/dev/null
kill -CONT $! 2>/dev/null
kill -KILL $! 2>/dev/null
for word; do case $word in lockgate-test-*.conf) rm -f "${TMPDIR:-/tmp}/$word";; esac; done
"#;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(4);

/// One `redis-server`, on a free port, that keeps nothing on disk.
#[derive(Debug)]
pub struct Server {
    port: u16,
    password: Option<String>,
    cluster: bool,
    keeper: Child,
    pid: u32,
}

/// The server that the tests of this process share, each in a namespace of its own.
pub async fn shared_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(Server::start).await
}

impl Server {
    /// Starts one, and returns when it answers.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Starts one that asks for this password.
    pub async fn with_password(password: &str) -> Self {
        Self::start_with(Some(password)).await
    }

    /// Starts one that may be a node of a cluster.
    pub(crate) async fn of_a_cluster() -> Self {
        Self::start_as(None, true).await
    }

    async fn start_with(password: Option<&str>) -> Self {
        Self::start_as(password, false).await
    }

    /// On another port if somebody else was faster to take the first one.
    async fn start_as(password: Option<&str>, cluster: bool) -> Self {
        for _ in 0..5 {
            let server = Self::spawn(password.map(str::to_owned), cluster);
            if tokio::time::timeout(START, server.is_up()).await.is_ok() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    /// A port on which there is none yet: [`restart`](Self::restart) starts it.
    #[must_use]
    pub fn not_running() -> Self {
        let mut server = Self::spawn(None, false);
        server.kill();
        server
    }

    fn spawn(password: Option<String>, cluster: bool) -> Self {
        let port = free_port();
        let (keeper, pid) = launch(port, password.as_deref(), cluster);
        Self { port, password, cluster, keeper, pid }
    }

    /// Its URL, with a namespace.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        let user = self.password.as_ref();
        let user = user.map_or_else(String::new, |password| format!(":{password}@"));
        format!("redis://{user}127.0.0.1:{}/?ns={namespace}", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it at once, with all that is in it.
    pub fn kill(&mut self) {
        // Its input closes, and the shell ends the server before itself.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }

    /// Starts it again on the same port, empty.
    pub async fn restart(&mut self) {
        (self.keeper, self.pid) = launch(self.port, self.password.as_deref(), self.cluster);
        self.is_up().await;
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
        let pid = self.pid.to_string();
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(pid).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "no server to send {signal} to");
    }

    /// A connection of the test's own.
    ///
    /// # Panics
    ///
    /// If the server is away.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.expect("the server answers")
    }

    fn client(&self) -> Option<redis::Client> {
        let url = self.url("");
        redis::Client::open(url.split('?').next()?).ok()
    }

    /// None if the server is away, or is another one.
    async fn try_connection(&self) -> Option<MultiplexedConnection> {
        let mut connection = self.client()?.get_multiplexed_async_connection().await.ok()?;
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("server").query_async(&mut connection).await.ok()?;
        let ours = format!("process_id:{}", self.pid);
        info.lines().any(|line| line == ours).then_some(connection)
    }

    async fn is_up(&self) {
        eventually("redis-server to answer", async || self.try_connection().await.is_some()).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Below those that the kernel gives to clients: one of them could take it before the server does, or
/// while the server is away.
fn free_port() -> u16 {
    loop {
        let [high, low, ..] = *Uuid::new_v4().as_bytes();
        let port = 10_000 + u16::from_be_bytes([high, low]) % 10_000;
        // A node of a cluster talks to others on the port that is 10,000 above its own.
        if [port, port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        {
            return port;
        }
    }
}

fn launch(port: u16, password: Option<&str>, cluster: bool) -> (Child, u32) {
    let found = Command::new("redis-server").arg("--version").output();
    assert!(
        found.is_ok(),
        "these tests start a redis-server of their own: install Redis, or put it into PATH"
    );
    let port = port.to_string();
    let mut keeper = Command::new("sh");
    keeper.args(["-c", KEEPER, "redis-server", "--port", &port]);
    keeper.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    keeper.args(["--dir".as_ref(), std::env::temp_dir().as_os_str()]);
    if cluster {
        let nodes = format!("lockgate-test-{}-{port}.conf", std::process::id());
        // No node is given up, however busy the machine is.
        keeper.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "30000"]);
        keeper.args(["--cluster-config-file", &nodes]);
    }
    if let Some(password) = password {
        keeper.args(["--requirepass", password]);
    }
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut keeper = keeper.stderr(Stdio::null()).spawn().expect("a shell");
    let said = keeper.stdout.take().expect("it is piped");
    let mut line = String::new();
    let _ = BufReader::new(said).read_line(&mut line);
    let pid = line.trim().parse().expect("the shell says the pid");
    (keeper, pid)
}
