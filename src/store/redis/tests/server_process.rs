//! A redis-server that a test may treat badly.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

use super::skewed_clock;
use crate::store::Store;
pub(super) use crate::store::tests::test_cluster::free_port;

/// How long a test's own commands, and a server that starts, may take: only what never comes takes this long.
const RESPONSE_LIMIT: Duration = Duration::from_secs(20);

pub(super) struct ServerProcess {
    child: Child,
    port: u16,
    /// Seconds by which its clock is ahead.
    clock_lead_secs: i64,
}

impl ServerProcess {
    pub(super) async fn start() -> Self {
        Self::start_with_clock_lead(0).await
    }

    /// Its clock is so many seconds ahead. On another port if somebody else was faster to take the first one.
    pub(super) async fn start_with_clock_lead(clock: i64) -> Self {
        for _ in 0..5 {
            let port = free_port();
            let child = spawn_server(port, clock);
            let mut server = Self { child, port, clock_lead_secs: clock };
            if server.wait_until_up().await {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?ns=test", self.port)
    }

    /// It has not been killed.
    fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Comes back empty, on the same port.
    pub(super) async fn restart(&mut self) {
        self.child = spawn_server(self.port, self.clock_lead_secs);
        assert!(self.wait_until_up().await, "redis-server on port {} does not answer", self.port);
    }

    /// SIGSTOP: connections stay, nothing answers.
    pub(super) fn freeze(&self) {
        self.send_signal("-STOP");
    }

    pub(super) fn resume(&self) {
        self.send_signal("-CONT");
    }

    fn send_signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(done.expect("kill is there").success());
    }

    /// A command of the test's own, past the store.
    pub(super) async fn command(&self, words: &[&str]) {
        let _: redis::Value = self.query(words).await;
    }

    /// As [`Self::command`], with its answer.
    pub(super) async fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_query(words).await.expect("it runs, and the command is right")
    }

    /// As [`Self::query`], if it may refuse.
    pub(super) async fn try_query<T: redis::FromRedisValue>(
        &self,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        let mut connection = connect_with_long_timeout(&client).await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut connection).await
    }

    /// It can't write any file from now on.
    pub(super) fn remove_data_dir(&self) {
        std::fs::remove_dir_all(data_dir(self.port)).expect("it is ours");
    }

    /// One number out of `INFO`; its own connection and call are counted too.
    pub(super) async fn info_number(&self, section: &str, field: &str) -> u64 {
        let text: String = self.query(&["INFO", section]).await;
        let found = text.split(['\r', '\n', ',']).find_map(|line| {
            let value = line.strip_prefix(field)?;
            value.trim_start_matches([':', '=']).parse().ok()
        });
        found.unwrap_or(0)
    }

    /// Whether `min-replicas-to-write` holds for the writes of scripts (Redis 7.0). Older servers
    /// apply it to plain commands only.
    pub(super) async fn applies_min_replicas_to_scripts(&self) -> bool {
        let info: String = self.query(&["INFO", "server"]).await;
        !info.contains("redis_version:6.")
    }

    /// A store whose deadline is met soon, but not by a server that stands in the run queue of a loaded machine.
    pub(super) async fn connect_store(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(1));
        builder.connect().await.expect("the URL is right")
    }

    /// A store for which a loaded machine is no outage.
    pub(super) async fn store_with_long_timeout(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(10));
        builder.connect().await.expect("the URL is right")
    }

    /// Clients that subscribe.
    pub(super) async fn count_subscribers(&self) -> usize {
        let list: String = self.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        list.lines().count()
    }

    /// Script calls that it has run.
    pub(super) async fn count_script_calls(&self) -> u64 {
        self.info_number("commandstats", "cmdstat_evalsha:calls").await
            + self.info_number("commandstats", "cmdstat_eval:calls").await
    }

    /// The keys that are there, but for those that stay by design.
    pub(super) async fn remaining_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]).await;
        keys.retain(|key| !key.ends_with(":meta") && !key.ends_with("}:f"));
        keys
    }

    /// False if it does not come up: it ends at once where another process has its port.
    async fn wait_until_up(&mut self) -> bool {
        let until = Instant::now() + RESPONSE_LIMIT;
        while self.is_running() && Instant::now() < until {
            if self.is_up().await {
                return true;
            }
            // A process tells nobody when it starts to listen.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// False if it is away, or if another process answers on its port.
    async fn is_up(&self) -> bool {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        let Ok(mut connection) = connect_with_long_timeout(&client).await else {
            return false;
        };
        let mut info = redis::cmd("INFO");
        let text = info.arg("server").query_async::<String>(&mut connection).await;
        let ours = format!("process_id:{}", self.child.id());
        text.is_ok_and(|text| text.lines().any(|line| line == ours))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(data_dir(self.port));
    }
}

/// A connection for which a loaded machine is no outage. (By default an answer has half a second.)
pub(super) async fn connect_with_long_timeout(
    client: &redis::Client,
) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_LIMIT))
        .set_response_timeout(Some(RESPONSE_LIMIT));
    client.get_multiplexed_async_connection_with_config(&patient).await
}

/// A replica keeps what it was sent in a file, which the next server to start there would read.
fn data_dir(port: u16) -> PathBuf {
    std::env::temp_dir().join(format!("lockgate-test-{}-{port}", std::process::id()))
}

fn spawn_server(port: u16, clock: i64) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    // A replica is not made to wait for others that might come.
    command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    std::fs::create_dir_all(data_dir(port)).expect("a place for temporary files");
    command.arg("--dir").arg(data_dir(port));
    if clock != 0 {
        skewed_clock::set_clock_ahead(&mut command, clock);
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("these tests need a redis-server: install Redis, or put it into PATH")
}
