//! The tests' own Redis server, and the ways to it.

use std::{
    process::Command,
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use redis_test::server::RedisServer;
use tokio::sync::Mutex;

use super::sentinels::Sentinels;
use crate::store::Store;

/// Port of a server that all test processes of a run share (`cargo xtask test`).
const SHARED_BY_PROCESSES: &str = "LOCKGATE_TESTS_SINGLE";

/// Of a server with default settings. To name the keys of a namespace takes time for each key of its database, so
/// namespaces are spread over all but the first one, where other tests leave theirs.
const DATABASES: u128 = 16;

/// One server for all tests that run at the same time; the last of them stops it.
static SERVER: LazyLock<Mutex<Weak<RedisServer>>> = LazyLock::new(Mutex::default);

/// The server, seen through a namespace of its own.
pub(super) struct Server {
    way: Way,
    url: String,
    namespace: String,
    raw: MultiplexedConnection,
}

/// Removes the keys with a prefix.
pub(super) const CLEAR: &str =
    "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do redis.call('UNLINK', key) end";

/// How a store gets to it.
enum Way {
    Url(#[expect(dead_code, reason = "it runs for as long as this")] Option<Arc<RedisServer>>),
    #[cfg(feature = "bb8-redis")]
    Pool(#[expect(dead_code, reason = "it runs for as long as this")] Option<Arc<RedisServer>>),
    Sentinels,
}

impl Server {
    pub(super) async fn shared() -> Self {
        Self::of(Way::Url).await
    }

    /// Its stores take their connections out of pools of the application's.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn behind_a_pool() -> Self {
        Self::of(Way::Pool).await
    }

    /// Its stores learn from sentinels where it is.
    pub(super) async fn behind_sentinels() -> Self {
        let sentinels = Sentinels::shared().await;
        let client = redis::Client::open(("127.0.0.1", sentinels.master())).expect("an address");
        let raw = patient(&client).await.expect("it has just answered");
        let namespace = uuid::Uuid::new_v4().simple().to_string();
        Self { way: Way::Sentinels, url: sentinels.url(), namespace, raw }
    }

    async fn of(way: impl FnOnce(Option<Arc<RedisServer>>) -> Way) -> Self {
        let (process, host) = match std::env::var(SHARED_BY_PROCESSES) {
            Ok(port) => (None, format!("127.0.0.1:{port}")),
            Err(_) => {
                let mut server = SERVER.lock().await;
                let process = match server.upgrade() {
                    Some(process) => process,
                    None => Arc::new(started().await),
                };
                *server = Arc::downgrade(&process);
                let (host, port) = process.host_and_port().expect("it listens on TCP");
                let host = format!("{host}:{port}");
                (Some(process), host)
            }
        };
        let namespace = uuid::Uuid::new_v4();
        let url = format!("redis://{host}/{}", 1 + namespace.as_u128() % (DATABASES - 1));
        let client = redis::Client::open(url.as_str()).expect("an address");
        let raw = patient(&client).await.expect("the server has just answered");
        Self { way: way(process), url, namespace: namespace.simple().to_string(), raw }
    }

    pub(super) async fn store(&self) -> Store {
        let builder = match self.way {
            Way::Url(_) | Way::Sentinels => Store::builder(&self.url),
            #[cfg(feature = "bb8-redis")]
            Way::Pool(_) => {
                let manager = bb8_redis::RedisConnectionManager::new(self.url.as_str());
                let pool = bb8::Pool::builder().max_size(4).build(manager.expect("an address"));
                // Messages know no databases.
                let (server, _) = self.url.rsplit_once('/').expect("a database");
                Store::from_pool(pool.await.expect("it runs")).pubsub_url(server)
            }
        };
        // Far more than a call takes: a loaded machine is no outage.
        let builder = builder.namespace(&self.namespace).call_timeout(Duration::from_secs(20));
        builder.connect().await.unwrap()
    }

    fn prefix(&self) -> String {
        format!("lg:1:{}:", self.namespace)
    }

    /// Lets time pass, in ms: everything stored ends that much sooner. Below 0, it is as if the server's clock
    /// were put back. (The clock itself can't be set.)
    pub(super) async fn shift(&self, ms: i64) {
        let mut call = redis::cmd("EVAL");
        call.arg(include_str!("shift_times.lua")).arg(0).arg(self.prefix());
        call.arg(ms);
        let () = call.query_async(&mut self.raw.clone()).await.unwrap();
    }

    /// All that is stored in the namespace, a line a key, with times as moments.
    pub(super) async fn shown(&self) -> Vec<String> {
        let mut call = redis::cmd("EVAL");
        call.arg(include_str!("dump_namespace.lua")).arg(0).arg(self.prefix());
        call.query_async(&mut self.raw.clone()).await.unwrap()
    }

    /// Removes all keys of the namespace.
    pub(super) async fn clear(&self) {
        let mut call = redis::cmd("EVAL");
        call.arg(CLEAR).arg(0).arg(self.prefix());
        call.query_async::<()>(&mut self.raw.clone()).await.unwrap();
    }

    /// A plain command about one key of the namespace, given as `{shard}:kind..`.
    pub(super) async fn raw<T: redis::FromRedisValue>(
        &self,
        verb: &str,
        key: &str,
        rest: &[&str],
    ) -> T {
        let mut call = redis::cmd(verb);
        call.arg(self.prefix() + key).arg(rest);
        call.query_async(&mut self.raw.clone()).await.unwrap()
    }

    /// All scripts are gone, as after a restart.
    pub(super) async fn forget_scripts(&self) {
        let mut call = redis::cmd("SCRIPT");
        call.arg("FLUSH");
        call.query_async::<()>(&mut self.raw.clone()).await.unwrap();
    }

    /// All keys of the namespace, without its prefix.
    pub(super) async fn names(&self) -> Vec<String> {
        let prefix = self.prefix();
        let mut call = redis::cmd("KEYS");
        call.arg(format!("{prefix}*"));
        let keys: Vec<String> = call.query_async(&mut self.raw.clone()).await.unwrap();
        let mut names: Vec<_> = keys.iter().map(|k| k[prefix.len()..].to_owned()).collect();
        names.sort_unstable();
        names
    }
}

pub(super) async fn started() -> RedisServer {
    let found = Command::new("redis-server").arg("--version").output();
    assert!(
        found.is_ok(),
        "these tests start a redis-server of their own: install Redis, or put it into PATH"
    );
    let mut server = RedisServer::new();
    for _ in 0..2000 {
        if connection(&server).await.is_some() {
            return server;
        }
        if server.process.try_wait().is_ok_and(|status| status.is_some()) {
            // Another process was faster to take the port.
            server = RedisServer::new();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("redis-server does not answer: {:?}", server.log_file_contents());
}

pub(super) async fn connection(server: &RedisServer) -> Option<MultiplexedConnection> {
    patient(&redis::Client::open(server.connection_info()).ok()?).await
}

/// A loaded machine is no outage here either.
async fn patient(client: &redis::Client) -> Option<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(20)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let mut connection = connection.await.ok()?;
    redis::cmd("PING").query_async::<()>(&mut connection).await.ok()?;
    Some(connection)
}
