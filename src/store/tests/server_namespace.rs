//! The tests' own Redis server, and the ways to it.

use std::{
    process::Command,
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use redis_test::server::RedisServer;
use tokio::sync::Mutex;

use super::sentinel_servers::SentinelServers;
use crate::store::Store;

/// Port of a server that all test processes of a run share (`cargo xtask test`).
const SERVER_PORT_VAR: &str = "LOCKGATE_TESTS_SINGLE";

/// Of a server with default settings. To name the keys of a namespace takes time for each key of its database, so
/// namespaces are spread over all but the first one, where other tests leave theirs.
const DATABASE_COUNT: u128 = 16;

/// One server for all tests that run at the same time; the last of them stops it.
static RUNNING_SERVER: LazyLock<Mutex<Weak<RedisServer>>> = LazyLock::new(Mutex::default);

/// The server, seen through a namespace of its own.
pub(super) struct ServerNamespace {
    route: ConnectionRoute,
    url: String,
    namespace: String,
    connection: MultiplexedConnection,
}

/// Removes the keys with a prefix.
pub(super) const DELETE_KEYS_SCRIPT: &str =
    "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do redis.call('UNLINK', key) end";

/// How a store gets to it.
enum ConnectionRoute {
    DirectUrl(
        #[expect(dead_code, reason = "it runs for as long as this")] Option<Arc<RedisServer>>,
    ),
    #[cfg(feature = "bb8-redis")]
    Pool(#[expect(dead_code, reason = "it runs for as long as this")] Option<Arc<RedisServer>>),
    Sentinels,
}

impl ServerNamespace {
    pub(super) async fn on_shared_server() -> Self {
        Self::connect_by_route(ConnectionRoute::DirectUrl).await
    }

    /// Its stores take their connections out of pools of the application's.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn through_pool() -> Self {
        Self::connect_by_route(ConnectionRoute::Pool).await
    }

    /// Its stores learn from sentinels where it is.
    pub(super) async fn through_sentinels() -> Self {
        let sentinels = SentinelServers::shared().await;
        let client =
            redis::Client::open(("127.0.0.1", sentinels.master_port())).expect("an address");
        let raw = connect_with_timeouts(&client).await.expect("it has just answered");
        let namespace = uuid::Uuid::new_v4().simple().to_string();
        Self { route: ConnectionRoute::Sentinels, url: sentinels.url(), namespace, connection: raw }
    }

    async fn connect_by_route(
        way: impl FnOnce(Option<Arc<RedisServer>>) -> ConnectionRoute,
    ) -> Self {
        let (process, host) = match std::env::var(SERVER_PORT_VAR) {
            Ok(port) => (None, format!("127.0.0.1:{port}")),
            Err(_) => {
                let mut server = RUNNING_SERVER.lock().await;
                let process = match server.upgrade() {
                    Some(process) => process,
                    None => Arc::new(start_server().await),
                };
                *server = Arc::downgrade(&process);
                let (host, port) = process.host_and_port().expect("it listens on TCP");
                let host = format!("{host}:{port}");
                (Some(process), host)
            }
        };
        let namespace = uuid::Uuid::new_v4();
        let url = format!("redis://{host}/{}", 1 + namespace.as_u128() % (DATABASE_COUNT - 1));
        let client = redis::Client::open(url.as_str()).expect("an address");
        let raw = connect_with_timeouts(&client).await.expect("the server has just answered");
        Self {
            route: way(process),
            url,
            namespace: namespace.simple().to_string(),
            connection: raw,
        }
    }

    pub(super) async fn connect_store(&self) -> Store {
        let builder = match self.route {
            ConnectionRoute::DirectUrl(_) | ConnectionRoute::Sentinels => Store::builder(&self.url),
            #[cfg(feature = "bb8-redis")]
            ConnectionRoute::Pool(_) => {
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

    fn key_prefix(&self) -> String {
        format!("lg:1:{}:", self.namespace)
    }

    /// Lets time pass, in ms: everything stored ends that much sooner. Below 0, it is as if the server's clock
    /// were put back. (The clock itself can't be set.)
    pub(super) async fn shift_time(&self, ms: i64) {
        let mut call = redis::cmd("EVAL");
        call.arg(include_str!("shift_times.lua")).arg(0).arg(self.key_prefix());
        call.arg(ms);
        let () = call.query_async(&mut self.connection.clone()).await.unwrap();
    }

    /// All that is stored in the namespace, a line a key, with times as moments.
    pub(super) async fn dump_keys(&self) -> Vec<String> {
        let mut call = redis::cmd("EVAL");
        call.arg(include_str!("dump_namespace.lua")).arg(0).arg(self.key_prefix());
        call.query_async(&mut self.connection.clone()).await.unwrap()
    }

    /// Removes all keys of the namespace.
    pub(super) async fn delete_all_keys(&self) {
        let mut call = redis::cmd("EVAL");
        call.arg(DELETE_KEYS_SCRIPT).arg(0).arg(self.key_prefix());
        call.query_async::<()>(&mut self.connection.clone()).await.unwrap();
    }

    /// A plain command about one key of the namespace, given as `{shard}:kind..`.
    pub(super) async fn key_command<T: redis::FromRedisValue>(
        &self,
        verb: &str,
        key: &str,
        rest: &[&str],
    ) -> T {
        let mut call = redis::cmd(verb);
        call.arg(self.key_prefix() + key).arg(rest);
        call.query_async(&mut self.connection.clone()).await.unwrap()
    }

    /// All scripts are gone, as after a restart.
    pub(super) async fn flush_scripts(&self) {
        let mut call = redis::cmd("SCRIPT");
        call.arg("FLUSH");
        call.query_async::<()>(&mut self.connection.clone()).await.unwrap();
    }

    /// All keys of the namespace, without its prefix.
    pub(super) async fn key_names(&self) -> Vec<String> {
        let prefix = self.key_prefix();
        let mut call = redis::cmd("KEYS");
        call.arg(format!("{prefix}*"));
        let keys: Vec<String> = call.query_async(&mut self.connection.clone()).await.unwrap();
        let mut names: Vec<_> = keys.iter().map(|k| k[prefix.len()..].to_owned()).collect();
        names.sort_unstable();
        names
    }
}

pub(super) async fn start_server() -> RedisServer {
    let found = Command::new("redis-server").arg("--version").output();
    assert!(
        found.is_ok(),
        "these tests start a redis-server of their own: install Redis, or put it into PATH"
    );
    let mut server = RedisServer::new();
    for _ in 0..2000 {
        if connect_to_server(&server).await.is_some() {
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

pub(super) async fn connect_to_server(server: &RedisServer) -> Option<MultiplexedConnection> {
    connect_with_timeouts(&redis::Client::open(server.connection_info()).ok()?).await
}

/// A loaded machine is no outage here either.
async fn connect_with_timeouts(client: &redis::Client) -> Option<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(20)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let mut connection = connection.await.ok()?;
    redis::cmd("PING").query_async::<()>(&mut connection).await.ok()?;
    Some(connection)
}
