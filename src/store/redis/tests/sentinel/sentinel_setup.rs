//! A master, a replica and three sentinels, as processes of one test.

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
        let sentinels = (0..3).map(|_| SentinelProcess::start(master.port())).collect();
        let setup = Self { master, replica, sentinels };
        // A failover needs a majority of sentinels that know each other, and a replica that they
        // know.
        for sentinel in &setup.sentinels {
            sentinel.wait_for_field("num-other-sentinels", "2").await;
            sentinel.wait_for_field("num-slaves", "1").await;
        }
        setup
    }

    pub(in super::super) fn url(&self) -> String {
        let nodes: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/mymaster?ns=test", nodes.join(","))
    }

    /// Sends a command to each sentinel.
    pub(in super::super) async fn command_all(&self, args: &[&str]) {
        for sentinel in &self.sentinels {
            let mut connection = sentinel.connect().await.expect("it runs");
            let mut command = redis::cmd(args[0]);
            command.arg(&args[1..]);
            command.query_async::<()>(&mut connection).await.expect("the command is right");
        }
    }

    /// Starts a failover while the master is alive and busy.
    pub(in super::super) async fn start_failover(&self) {
        let reply = self.sentinels[0].sentinel_command::<String>(&["FAILOVER", "mymaster"]).await;
        assert_eq!(reply.as_deref(), Some("OK"));
    }

    /// Waits until `stores` clients are subscribed to the events of each sentinel.
    pub(super) async fn wait_for_subscribers(&self, stores: usize) {
        for sentinel in &self.sentinels {
            while sentinel.count_subscribers().await.is_none_or(|count| count < stores) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Waits until a sentinel reports this flag of the master.
    pub(super) async fn wait_for_flag(&self, flag: &str) {
        loop {
            for sentinel in &self.sentinels {
                if sentinel.master_field("flags").await.is_some_and(|flags| flags.contains(flag)) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until all sentinels name the replica.
    pub(in super::super) async fn wait_for_failover(&self) {
        for sentinel in &self.sentinels {
            sentinel.wait_for_field("port", &self.replica.port().to_string()).await;
        }
    }
}

impl SentinelProcess {
    fn start(master: u16) -> Self {
        let port = free_port();
        let name = format!("lockgate-sentinel-{}-{port}.conf", std::process::id());
        let config_path = std::env::temp_dir().join(name);
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor mymaster 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds mymaster 1000\n\
             sentinel failover-timeout mymaster 5000\n",
            std::env::temp_dir().display()
        );
        std::fs::write(&config_path, text).expect("the temporary directory is writable");
        let mut command = Command::new("redis-server");
        command.arg(&config_path).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("redis-server is there");
        Self { child, port, config_path }
    }

    async fn wait_for_field(&self, field: &str, value: &str) {
        while self.master_field(field).await.is_none_or(|found| found != value) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns a field of the sentinel's report on the master.
    async fn master_field(&self, field: &str) -> Option<String> {
        let fields = self.sentinel_command::<Vec<String>>(&["MASTER", "mymaster"]).await?;
        let found = fields.chunks_exact(2).find(|pair| pair[0] == field);
        found.map(|pair| pair[1].clone())
    }

    async fn count_subscribers(&self) -> Option<usize> {
        let mut connection = self.connect().await?;
        // Sentinels have no `PUBSUB`. No other client has two subscriptions.
        let mut command = redis::cmd("CLIENT");
        command.arg("LIST").arg("TYPE").arg("pubsub");
        let list = command.query_async::<String>(&mut connection).await.ok()?;
        Some(list.lines().filter(|client| client.contains(" sub=2 ")).count())
    }

    async fn connect(&self) -> Option<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        connect_with_long_timeout(&client).await.ok()
    }

    async fn sentinel_command<T: redis::FromRedisValue>(&self, args: &[&str]) -> Option<T> {
        let mut connection = self.connect().await?;
        redis::cmd("SENTINEL").arg(args).query_async(&mut connection).await.ok()
    }
}

impl Drop for SentinelProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config_path);
    }
}
