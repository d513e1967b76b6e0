//! A master, a replica and three sentinels, as processes of the test's own.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::super::server::{Server, free_port, patient};

pub(in super::super) struct Sentinels {
    pub(in super::super) master: Server,
    pub(in super::super) replica: Server,
    watchers: Vec<Watcher>,
}

struct Watcher {
    child: Child,
    port: u16,
    settings: PathBuf,
}

impl Sentinels {
    pub(in super::super) async fn start() -> Self {
        let (master, replica) = super::pair().await;
        let watchers = (0..3).map(|_| Watcher::start(master.port())).collect();
        let sentinels = Self { master, replica, watchers };
        // A failover needs a majority that know each other, and a replica that they know of.
        for watcher in &sentinels.watchers {
            watcher.says("num-other-sentinels", "2").await;
            watcher.says("num-slaves", "1").await;
        }
        sentinels
    }

    pub(in super::super) fn url(&self) -> String {
        let nodes: Vec<_> =
            self.watchers.iter().map(|watcher| format!("127.0.0.1:{}", watcher.port)).collect();
        format!("redis+sentinel://{}/mymaster?ns=test", nodes.join(","))
    }

    /// The same to each of them.
    pub(in super::super) async fn tell_all(&self, words: &[&str]) {
        for watcher in &self.watchers {
            let mut connection = watcher.connection().await.expect("it runs");
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command.query_async::<()>(&mut connection).await.expect("the command is right");
        }
    }

    /// While the master is alive and busy.
    pub(in super::super) async fn fail_over(&self) {
        let answer = self.watchers[0].ask::<String>(&["FAILOVER", "mymaster"]).await;
        assert_eq!(answer.as_deref(), Some("OK"));
    }

    /// Until so many hear what each of them says of failovers.
    pub(super) async fn are_heard_by(&self, stores: usize) {
        for watcher in &self.watchers {
            while watcher.heard_by().await.is_none_or(|heard| heard < stores) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Until one of them has this to say of the master.
    pub(super) async fn some_flag(&self, flag: &str) {
        loop {
            for watcher in &self.watchers {
                if watcher.field("flags").await.is_some_and(|flags| flags.contains(flag)) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Until all of them name the replica.
    pub(in super::super) async fn failed_over(&self) {
        for watcher in &self.watchers {
            watcher.says("port", &self.replica.port().to_string()).await;
        }
    }
}

impl Watcher {
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
        Self { child, port, settings }
    }

    async fn says(&self, field: &str, value: &str) {
        while self.field(field).await.is_none_or(|told| told != value) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What it tells of the master.
    async fn field(&self, field: &str) -> Option<String> {
        let facts = self.ask::<Vec<String>>(&["MASTER", "mymaster"]).await?;
        let found = facts.chunks_exact(2).find(|pair| pair[0] == field);
        found.map(|pair| pair[1].clone())
    }

    async fn heard_by(&self) -> Option<usize> {
        let mut connection = self.connection().await?;
        // Sentinels have no PUBSUB; nobody else subscribes to these.
        let mut command = redis::cmd("CLIENT");
        command.arg("LIST").arg("TYPE").arg("pubsub");
        let list = command.query_async::<String>(&mut connection).await.ok()?;
        Some(list.lines().filter(|client| client.contains(" sub=2 ")).count())
    }

    async fn connection(&self) -> Option<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        patient(&client).await.ok()
    }

    async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let mut connection = self.connection().await?;
        redis::cmd("SENTINEL").arg(words).query_async(&mut connection).await.ok()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.settings);
    }
}
