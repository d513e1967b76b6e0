//! A master, a replica and three sentinels, as processes of the test's own.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::super::server_process::{ServerProcess, connect_with_long_timeout, free_port};

pub(in super::super) struct SentinelSetup {
    pub(in super::super) master: ServerProcess,
    pub(in super::super) replica: ServerProcess,
    sentinels: Vec<SentinelProcess>,
}

struct SentinelProcess {
    child: Child,
    port: u16,
    config_path: PathBuf,
}

impl SentinelSetup {
    pub(in super::super) async fn start() -> Self {
        let (master, replica) = super::start_replicated_pair().await;
        let watchers = (0..3).map(|_| SentinelProcess::start(master.port())).collect();
        let sentinels = Self { master, replica, sentinels: watchers };
        // A failover needs a majority that know each other, and a replica that they know of.
        for watcher in &sentinels.sentinels {
            watcher.wait_for_field("num-other-sentinels", "2").await;
            watcher.wait_for_field("num-slaves", "1").await;
        }
        sentinels
    }

    pub(in super::super) fn url(&self) -> String {
        let nodes: Vec<_> =
            self.sentinels.iter().map(|watcher| format!("127.0.0.1:{}", watcher.port)).collect();
        format!("redis+sentinel://{}/mymaster?ns=test", nodes.join(","))
    }

    /// The same to each of them.
    pub(in super::super) async fn command_all(&self, words: &[&str]) {
        for watcher in &self.sentinels {
            let mut connection = watcher.connect().await.expect("it runs");
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command.query_async::<()>(&mut connection).await.expect("the command is right");
        }
    }

    /// While the master is alive and busy.
    pub(in super::super) async fn start_failover(&self) {
        let answer = self.sentinels[0].sentinel_command::<String>(&["FAILOVER", "mymaster"]).await;
        assert_eq!(answer.as_deref(), Some("OK"));
    }

    /// Until so many hear what each of them says of failovers.
    pub(super) async fn wait_for_subscribers(&self, stores: usize) {
        for watcher in &self.sentinels {
            while watcher.count_subscribers().await.is_none_or(|heard| heard < stores) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Until one of them has this to say of the master.
    pub(super) async fn wait_for_flag(&self, flag: &str) {
        loop {
            for watcher in &self.sentinels {
                if watcher.master_field("flags").await.is_some_and(|flags| flags.contains(flag)) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Until all of them name the replica.
    pub(in super::super) async fn wait_for_failover(&self) {
        for watcher in &self.sentinels {
            watcher.wait_for_field("port", &self.replica.port().to_string()).await;
        }
    }
}

impl SentinelProcess {
    fn start(master: u16) -> Self {
        let port = free_port();
        let name = format!("lockgate-sentinel-{}-{port}.conf", std::process::id());
        let settings = std::env::temp_dir().join(name);
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor mymaster 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds mymaster 1000\n\
             sentinel failover-timeout mymaster 5000\n",
            std::env::temp_dir().display()
        );
        std::fs::write(&settings, text).expect("a place for temporary files");
        let mut command = Command::new("redis-server");
        command.arg(&settings).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("redis-server is there");
        Self { child, port, config_path: settings }
    }

    async fn wait_for_field(&self, field: &str, value: &str) {
        while self.master_field(field).await.is_none_or(|told| told != value) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What it tells of the master.
    async fn master_field(&self, field: &str) -> Option<String> {
        let facts = self.sentinel_command::<Vec<String>>(&["MASTER", "mymaster"]).await?;
        let found = facts.chunks_exact(2).find(|pair| pair[0] == field);
        found.map(|pair| pair[1].clone())
    }

    async fn count_subscribers(&self) -> Option<usize> {
        let mut connection = self.connect().await?;
        // Sentinels have no PUBSUB; nobody else subscribes to these.
        let mut command = redis::cmd("CLIENT");
        command.arg("LIST").arg("TYPE").arg("pubsub");
        let list = command.query_async::<String>(&mut connection).await.ok()?;
        Some(list.lines().filter(|client| client.contains(" sub=2 ")).count())
    }

    async fn connect(&self) -> Option<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        connect_with_long_timeout(&client).await.ok()
    }

    async fn sentinel_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let mut connection = self.connect().await?;
        redis::cmd("SENTINEL").arg(words).query_async(&mut connection).await.ok()
    }
}

impl Drop for SentinelProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config_path);
    }
}
