//! `SentinelDeployment`: a master, its replica, and three sentinels that monitor them.

use std::{fs, path::PathBuf, process::Child};

use redis::{Value, aio::MultiplexedConnection};

use crate::{
    redis_server::{RedisServer, free_port, long_timeout_config, spawn_sentinel},
    wait::eventually,
};

/// Deployment that ends when it is dropped, or with the program that started it.
#[derive(Debug)]
pub struct SentinelDeployment {
    /// Initial master.
    pub master: RedisServer,
    /// Replica that is promoted when the master fails.
    pub replica: RedisServer,
    sentinels: Vec<(Child, u16)>,
    folder: PathBuf,
}

impl SentinelDeployment {
    /// Starts the deployment and waits until the sentinels know each other.
    /// `down-after-milliseconds` is three seconds.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub async fn start() -> Self {
        let name = format!("lockgate-sentinels-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the sentinels");
        let (master, replica) = (RedisServer::start().await, RedisServer::start().await);
        let port = master.port().to_string();
        send_command(&replica, &["REPLICAOF", "127.0.0.1", &port]).await;
        eventually("the replica to follow", async || {
            send_command(&master, &["WAIT", "1", "100"]).await == Value::Int(1)
        })
        .await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let sentinel_port = free_port();
            let file = folder.join(format!("{sentinel_port}.conf"));
            let text = format!(
                "port {sentinel_port}\nbind 127.0.0.1\ndir {}\n\
                 sentinel monitor mymaster 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds mymaster 3000\n\
                 sentinel failover-timeout mymaster 5000\n",
                folder.display()
            );
            fs::write(&file, text).expect("a file for a sentinel");
            sentinels.push((spawn_sentinel(&file), sentinel_port));
        }
        let deployment = Self { master, replica, sentinels, folder };
        eventually("the sentinels to know each other", async || {
            for (_, port) in &deployment.sentinels {
                let known_peers = deployment.count_known_peers(*port).await;
                if known_peers != Some((1, 2)) {
                    return false;
                }
            }
            true
        })
        .await;
        deployment
    }

    /// Returns true if every sentinel reports the replica as master. An empty old master must not
    /// restart before: a sentinel with the old view would make the new master its replica and so
    /// empty it.
    pub async fn have_switched_to_replica(&self) -> bool {
        let mut name = redis::cmd("SENTINEL");
        name.arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster");
        for (_, port) in &self.sentinels {
            let Some(mut connection) = connect_sentinel(*port).await else { return false };
            let master_address: Option<(String, u16)> =
                name.query_async(&mut connection).await.unwrap_or_default();
            if master_address.is_none_or(|(_, port)| port != self.replica.port()) {
                return false;
            }
        }
        true
    }

    /// Restarts the killed master, which is empty and a master until a sentinel reconfigures it. On
    /// a loaded machine the sentinels could suspect the new master meanwhile and promote the empty
    /// one, whatever its priority. So the quorum is set above the number of sentinels, which
    /// disables failovers.
    pub async fn restart_old_master(&mut self) {
        let mut set_quorum = redis::cmd("SENTINEL");
        set_quorum.arg("SET").arg("mymaster").arg("quorum").arg(self.sentinels.len() + 1);
        for (_, port) in &self.sentinels {
            let mut connection = connect_sentinel(*port).await.expect("the sentinel is there");
            let _: () = set_quorum.query_async(&mut connection).await.expect("it may be set");
        }
        self.master.restart().await;
    }

    /// Returns the numbers of replicas and other sentinels that a sentinel knows.
    async fn count_known_peers(&self, port: u16) -> Option<(i64, i64)> {
        let mut connection = connect_sentinel(port).await?;
        let mut query = redis::cmd("SENTINEL");
        query.arg("MASTER").arg("mymaster");
        let fields: std::collections::HashMap<String, String> =
            query.query_async(&mut connection).await.ok()?;
        let number = |name: &str| fields.get(name)?.parse().ok();
        Some((number("num-slaves")?, number("num-other-sentinels")?))
    }

    /// Returns the URL with a namespace.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        let addresses = self.sentinels.iter().map(|(_, port)| format!("127.0.0.1:{port}"));
        let addresses = addresses.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{addresses}/mymaster?ns={namespace}")
    }
}

impl Drop for SentinelDeployment {
    fn drop(&mut self) {
        for (supervisor, _) in &mut self.sentinels {
            drop(supervisor.stdin.take());
            let _ = supervisor.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn connect_sentinel(port: u16) -> Option<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).ok()?;
    client.get_multiplexed_async_connection_with_config(&long_timeout_config()).await.ok()
}

async fn send_command(server: &RedisServer, arguments: &[&str]) -> Value {
    let mut command = redis::cmd(arguments[0]);
    command.arg(&arguments[1..]);
    command.query_async(&mut server.connection().await).await.expect("an answer")
}
