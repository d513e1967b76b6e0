//! `ServerProcess`: a redis-server that a test may kill, freeze and restart.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

use super::skewed_clock;
use crate::store::Store;
pub(super) use crate::store::tests::test_cluster::free_port;

/// Longest time of a test's own commands, and of the start of a server. Only a failure takes this
/// long.
const RESPONSE_LIMIT: Duration = Duration::from_secs(20);

pub(super) struct ServerProcess {
    child: Child,
    port: u16,
    /// Lead of its clock, in seconds.
    clock_lead_secs: i64,
}

impl ServerProcess {
    pub(super) async fn start() -> Self {
        Self::start_with_clock_lead(0).await
    }

    /// Starts with a clock lead in seconds. Tries another port if a process has taken the first
    /// one.
    pub(super) async fn start_with_clock_lead(clock_lead_secs: i64) -> Self {
        for _ in 0..5 {
            let port = free_port();
            let child = spawn_server(port, clock_lead_secs);
            let mut server = Self { child, port, clock_lead_secs };
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

    /// Returns true if the process has not ended.
    fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Starts again without data, on the same port.
    pub(super) async fn restart(&mut self) {
        self.child = spawn_server(self.port, self.clock_lead_secs);
        assert!(self.wait_until_up().await, "redis-server on port {} does not answer", self.port);
    }

    /// Sends SIGSTOP: connections stay open, and nothing is answered.
    pub(super) fn freeze(&self) {
        self.send_signal("-STOP");
    }

    pub(super) fn resume(&self) {
        self.send_signal("-CONT");
    }

    fn send_signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.expect("kill is there").success());
    }

    /// Runs a command of the test, without a store.
    pub(super) async fn command(&self, args: &[&str]) {
        let _: redis::Value = self.query(args).await;
    }

    /// Like [`Self::command`], but returns the reply.
    pub(super) async fn query<T: redis::FromRedisValue>(&self, args: &[&str]) -> T {
        self.try_query(args).await.expect("it runs, and the command is right")
    }

    /// Like [`Self::query`], but returns errors.
    pub(super) async fn try_query<T: redis::FromRedisValue>(
        &self,
        args: &[&str],
    ) -> redis::RedisResult<T> {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        let mut connection = connect_with_long_timeout(&client).await?;
        let mut command = redis::cmd(args[0]);
        command.arg(&args[1..]).query_async(&mut connection).await
    }

    /// Removes its directory, so that it cannot write files.
    pub(super) fn remove_data_dir(&self) {
        std::fs::remove_dir_all(data_dir(self.port)).expect("the data directory exists");
    }

    /// Returns a number from `INFO`. The connection and the call of this query are counted, too.
    pub(super) async fn info_number(&self, section: &str, field: &str) -> u64 {
        let text: String = self.query(&["INFO", section]).await;
        let found = text.split(['\r', '\n', ',']).find_map(|line| {
            let value = line.strip_prefix(field)?;
            value.trim_start_matches([':', '=']).parse().ok()
        });
        found.unwrap_or(0)
    }

    /// Returns true if `min-replicas-to-write` holds for the writes of scripts (Redis 7.0). Older
    /// servers apply it to plain commands only.
    pub(super) async fn applies_min_replicas_to_scripts(&self) -> bool {
        let info: String = self.query(&["INFO", "server"]).await;
        !info.contains("redis_version:6.")
    }

    /// Connects a store with a short deadline, which still allows for a loaded machine.
    pub(super) async fn connect_store(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(1));
        builder.connect().await.expect("the URL is right")
    }

    /// Connects a store with a deadline that a loaded machine meets.
    pub(super) async fn store_with_long_timeout(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(10));
        builder.connect().await.expect("the URL is right")
    }

    pub(super) async fn count_subscribers(&self) -> usize {
        let list: String = self.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        list.lines().count()
    }

    /// Returns the number of script calls that the server has run.
    pub(super) async fn count_script_calls(&self) -> u64 {
        self.info_number("commandstats", "cmdstat_evalsha:calls").await
            + self.info_number("commandstats", "cmdstat_eval:calls").await
    }

    /// Returns the keys that exist, without the permanent ones.
    pub(super) async fn remaining_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]).await;
        keys.retain(|key| !key.ends_with(":meta") && !key.ends_with("}:f"));
        keys
    }

    /// Returns false if the server does not come up. It ends at once if its port is taken.
    async fn wait_until_up(&mut self) -> bool {
        let until = Instant::now() + RESPONSE_LIMIT;
        while self.is_running() && Instant::now() < until {
            if self.is_up().await {
                return true;
            }
            // No event announces that a process listens.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// Returns false if the server does not answer, or another process answers on its port.
    async fn is_up(&self) -> bool {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        let Ok(mut connection) = connect_with_long_timeout(&client).await else {
            return false;
        };
        let mut info = redis::cmd("INFO");
        let text = info.arg("server").query_async::<String>(&mut connection).await;
        let process_id_line = format!("process_id:{}", self.child.id());
        text.is_ok_and(|text| text.lines().any(|line| line == process_id_line))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(data_dir(self.port));
    }
}

/// Connects with a timeout that a loaded machine meets. The default is half a second.
pub(super) async fn connect_with_long_timeout(
    client: &redis::Client,
) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_LIMIT))
        .set_response_timeout(Some(RESPONSE_LIMIT));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// A replica stores the data that it receives in a file, which the next server in the directory
/// would load.
fn data_dir(port: u16) -> PathBuf {
    std::env::temp_dir().join(format!("lockgate-test-{}-{port}", std::process::id()))
}

fn spawn_server(port: u16, clock_lead_secs: i64) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    // Synchronize replicas at once, instead of waiting for others that might connect.
    command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    std::fs::create_dir_all(data_dir(port)).expect("the temporary directory is writable");
    command.arg("--dir").arg(data_dir(port));
    if clock_lead_secs != 0 {
        skewed_clock::set_clock_ahead(&mut command, clock_lead_secs);
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("these tests need a redis-server: install Redis, or put it into PATH")
}
