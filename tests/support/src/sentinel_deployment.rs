//! `SentinelDeployment`: a master, its replica, and three sentinels that monitor them.

use std::{fs, path::PathBuf, process::Child};

use redis::{Value, aio::MultiplexedConnection};

use crate::{
    redis_server::{RedisServer, free_port, long_timeout_config, spawn_sentinel},
    wait::eventually,
};

/// It ends when it is dropped, or with the program that started it.
#[derive(Debug)]
pub struct SentinelDeployment {
    /// Who is the master at first.
    pub master: RedisServer,
    /// Who is promoted when that has gone.
    pub replica: RedisServer,
    sentinels: Vec<(Child, u16)>,
    folder: PathBuf,
}

impl SentinelDeployment {
    /// Starts them, and returns when each knows of all others. They take a master for gone after a second.
    ///
    /// # Panics
    ///
    /// If they can't be started.
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
            let own = free_port();
            let file = folder.join(format!("{own}.conf"));
            let text = format!(
                "port {own}\nbind 127.0.0.1\ndir {}\n\
                 sentinel monitor mymaster 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds mymaster 3000\n\
                 sentinel failover-timeout mymaster 5000\n",
                folder.display()
            );
            fs::write(&file, text).expect("a file for a sentinel");
            sentinels.push((spawn_sentinel(&file), own));
        }
        let all = Self { master, replica, sentinels, folder };
        eventually("the sentinels to know each other", async || {
            for (_, port) in &all.sentinels {
                let knows = all.count_known_peers(*port).await;
                if knows != Some((1, 2)) {
                    return false;
                }
            }
            true
        })
        .await;
        all
    }

    /// Whether each of them takes the replica for the master. Not before that may the old one come back, if it has
    /// kept nothing: whoever still believes in it would make the new one its replica, and so empty too.
    pub async fn have_switched_to_replica(&self) -> bool {
        let mut name = redis::cmd("SENTINEL");
        name.arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster");
        for (_, port) in &self.sentinels {
            let Some(mut connection) = connect_sentinel(*port).await else { return false };
            let named: Option<(String, u16)> =
                name.query_async(&mut connection).await.unwrap_or_default();
            if named.is_none_or(|(_, port)| port != self.replica.port()) {
                return false;
            }
        }
        true
    }

    /// Starts the old master again, which was killed. It is empty, and takes itself for a master until it is told
    /// otherwise. On a busy machine the new one may seem gone before that, and this one be promoted, whatever its
    /// priority: so no master is taken for gone from now on, as that needs more sentinels than there are.
    pub async fn restart_old_master(&mut self) {
        let mut more = redis::cmd("SENTINEL");
        more.arg("SET").arg("mymaster").arg("quorum").arg(self.sentinels.len() + 1);
        for (_, port) in &self.sentinels {
            let mut connection = connect_sentinel(*port).await.expect("the sentinel is there");
            let _: () = more.query_async(&mut connection).await.expect("it may be set");
        }
        self.master.restart().await;
    }

    /// How many replicas and other sentinels one of them knows.
    async fn count_known_peers(&self, port: u16) -> Option<(i64, i64)> {
        let mut connection = connect_sentinel(port).await?;
        let mut look = redis::cmd("SENTINEL");
        look.arg("MASTER").arg("mymaster");
        let facts: std::collections::HashMap<String, String> =
            look.query_async(&mut connection).await.ok()?;
        let of = |name: &str| facts.get(name)?.parse().ok();
        Some((of("num-slaves")?, of("num-other-sentinels")?))
    }

    /// Their URL, with a namespace.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        let each = self.sentinels.iter().map(|(_, port)| format!("127.0.0.1:{port}"));
        let each = each.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{each}/mymaster?ns={namespace}")
    }
}

impl Drop for SentinelDeployment {
    fn drop(&mut self) {
        for (keeper, _) in &mut self.sentinels {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn connect_sentinel(port: u16) -> Option<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).ok()?;
    client.get_multiplexed_async_connection_with_config(&long_timeout_config()).await.ok()
}

async fn send_command(server: &RedisServer, words: &[&str]) -> Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut server.connection().await).await.expect("an answer")
}
