//! The Redis server of the tests, and the connections to it.

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

/// Number of databases of a server with default settings. Listing the keys of a namespace takes
/// time for each key of its database, so namespaces are spread over all databases but the first,
/// which other tests use.
const DATABASE_COUNT: u128 = 16;

/// One server for all concurrent tests; the last of them stops it.
static RUNNING_SERVER: LazyLock<Mutex<Weak<RedisServer>>> = LazyLock::new(Mutex::default);

/// A namespace of its own on the server.
pub(super) struct ServerNamespace {
    route: ConnectionRoute,
    url: String,
    namespace: String,
    connection: MultiplexedConnection,
}

/// Removes all keys with a prefix.
pub(super) const DELETE_KEYS_SCRIPT: &str =
    "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do redis.call('UNLINK', key) end";

/// Kind of the connections of a store.
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

    /// Returns a namespace whose stores use connection pools of the application.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn through_pool() -> Self {
        Self::connect_by_route(ConnectionRoute::Pool).await
    }

    /// Returns a namespace whose stores find the server through sentinels.
    pub(super) async fn through_sentinels() -> Self {
        let sentinels = SentinelServers::shared().await;
        let client =
            redis::Client::open(("127.0.0.1", sentinels.master_port())).expect("an address");
        let connection = connect_with_timeouts(&client).await.expect("it has just answered");
        let namespace = uuid::Uuid::new_v4().simple().to_string();
        Self { route: ConnectionRoute::Sentinels, url: sentinels.url(), namespace, connection }
    }

    async fn connect_by_route(
        route: impl FnOnce(Option<Arc<RedisServer>>) -> ConnectionRoute,
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
        let connection =
            connect_with_timeouts(&client).await.expect("the server has just answered");
        Self { route: route(process), url, namespace: namespace.simple().to_string(), connection }
    }

    pub(super) async fn connect_store(&self) -> Store {
        let builder = match self.route {
            ConnectionRoute::DirectUrl(_) | ConnectionRoute::Sentinels => Store::builder(&self.url),
            #[cfg(feature = "bb8-redis")]
            ConnectionRoute::Pool(_) => {
                let manager = bb8_redis::RedisConnectionManager::new(self.url.as_str());
                let pool = bb8::Pool::builder().max_size(4).build(manager.expect("an address"));
                // Pub/sub has no databases.
                let (server, _) = self.url.rsplit_once('/').expect("a database");
                Store::from_pool(pool.await.expect("it runs")).pubsub_url(server)
            }
        };
        // Far more than a call takes, so that a loaded machine is not taken for an outage.
        let builder = builder.namespace(&self.namespace).call_timeout(Duration::from_secs(20));
        builder.connect().await.unwrap()
    }

    fn key_prefix(&self) -> String {
        format!("lg:1:{}:", self.namespace)
    }

    /// Lets time pass: all stored times move into the past by this many ms. A negative value acts
    /// like a clock that was put back; the real clock cannot be set.
    pub(super) async fn shift_time(&self, ms: i64) {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("shift_times.lua")).arg(0).arg(self.key_prefix());
        command.arg(ms);
        let () = command.query_async(&mut self.connection.clone()).await.unwrap();
    }

    /// Returns the content of the namespace, a line per key, with absolute times.
    pub(super) async fn dump_keys(&self) -> Vec<String> {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("dump_namespace.lua")).arg(0).arg(self.key_prefix());
        command.query_async(&mut self.connection.clone()).await.unwrap()
    }

    /// Removes all keys of the namespace.
    pub(super) async fn delete_all_keys(&self) {
        let mut command = redis::cmd("EVAL");
        command.arg(DELETE_KEYS_SCRIPT).arg(0).arg(self.key_prefix());
        command.query_async::<()>(&mut self.connection.clone()).await.unwrap();
    }

    /// Sends a plain command about one key of the namespace, given as `{shard}:kind..`.
    pub(super) async fn key_command<T: redis::FromRedisValue>(
        &self,
        verb: &str,
        key: &str,
        args: &[&str],
    ) -> T {
        let mut command = redis::cmd(verb);
        command.arg(self.key_prefix() + key).arg(args);
        command.query_async(&mut self.connection.clone()).await.unwrap()
    }

    /// Removes all scripts, as a restart does.
    pub(super) async fn flush_scripts(&self) {
        let mut command = redis::cmd("SCRIPT");
        command.arg("FLUSH");
        command.query_async::<()>(&mut self.connection.clone()).await.unwrap();
    }

    /// Returns all keys of the namespace, without its prefix.
    pub(super) async fn key_names(&self) -> Vec<String> {
        let prefix = self.key_prefix();
        let mut command = redis::cmd("KEYS");
        command.arg(format!("{prefix}*"));
        let keys: Vec<String> = command.query_async(&mut self.connection.clone()).await.unwrap();
        let mut names: Vec<_> = keys.iter().map(|k| k[prefix.len()..].to_owned()).collect();
        names.sort_unstable();
        names
    }
}

pub(super) async fn start_server() -> RedisServer {
    let version = Command::new("redis-server").arg("--version").output();
    assert!(
        version.is_ok(),
        "these tests start a redis-server of their own: install Redis, or put it into PATH"
    );
    let mut server = RedisServer::new();
    for _ in 0..2000 {
        if connect_to_server(&server).await.is_some() {
            return server;
        }
        if server.process.try_wait().is_ok_and(|status| status.is_some()) {
            // Another process took the port first.
            server = RedisServer::new();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("redis-server does not answer: {:?}", server.log_file_contents());
}

pub(super) async fn connect_to_server(server: &RedisServer) -> Option<MultiplexedConnection> {
    connect_with_timeouts(&redis::Client::open(server.connection_info()).ok()?).await
}

/// Connects with high timeouts, because a loaded machine is no outage.
async fn connect_with_timeouts(client: &redis::Client) -> Option<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(20)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.ok()?;
    redis::cmd("PING").query_async::<()>(&mut connection).await.ok()?;
    Some(connection)
}
