//! Builder of stores on Redis or Valkey, and the constructors of [`Store`] for them.

mod build;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{
    connection_source::{ConnectionOverrides, ConnectionSource},
    target::LoginCredentials,
};
use crate::{
    clock::MAX_DURATION,
    error::{Error, ErrorKind},
    store::{Store, backend::Backend as _},
};

/// Connection settings of a store on Redis or Valkey (6.2 or newer).
///
/// ```no_run
/// # async fn example() -> Result<(), lockgate::Error> {
/// use std::time::Duration;
///
/// let store = lockgate::Store::builder("redis://127.0.0.1/")
///     .namespace("shop")
///     .call_timeout(Duration::from_millis(100))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct StoreBuilder {
    source: ConnectionSource,
    overrides: ConnectionOverrides,
    namespace: Option<String>,
    deadline: Duration,
    connections: usize,
    replicas_on_disk: bool,
}

impl Store {
    /// Connects to the servers of a URL:
    ///
    /// | Servers | URL |
    /// |---|---|
    /// | single server | `redis://[user:password@]host[:port][/db]` |
    /// | on a unix socket | `unix:///path[?db=&user=&pass=]` |
    /// | Sentinel | `redis+sentinel://[user:password@]host[:port],host[:port]/master[/db]` |
    /// | cluster, by some nodes | `redis+cluster://[user:password@]host[:port],host[:port]` |
    ///
    /// - `?ns=namespace` at the end sets the namespace.
    /// - `rediss` instead of `redis` uses TLS (feature `tls`; certificates are set with
    ///   [`Store::builder`]).
    /// - `valkey` and `valkeys` mean the same as `redis` and `rediss`.
    /// - User and password are those of the servers, percent-encoded. For sentinels with a login of
    ///   their own, add `sentinel_user=` and `sentinel_password=`.
    ///
    /// An unavailable server is not an error here. It is an outage like any later one: the layers
    /// respond by their policy until the server is back.
    ///
    /// # Errors
    ///
    /// Only errors of kind `Config`:
    ///
    /// - The URL can't be parsed.
    /// - The password is wrong, or the user lacks a permission ([`StoreBuilder::login`]).
    /// - The server is older than Redis 6.2.
    /// - The namespace is in use by a version with another key layout.
    /// - With `rediss`: the certificate is not trusted, or there is no crypto provider.
    /// - With sentinels: they do not know the master.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Like [`Store::connect`], with settings.
    pub fn builder(url: &str) -> StoreBuilder {
        StoreBuilder::new(ConnectionSource::Url(url.to_owned()))
    }

    /// Connects to the master of this name, as reported by the sentinels.
    ///
    /// Each sentinel is `redis://[user:password@]host[:port]`, with the login of the sentinels.
    /// [`StoreBuilder::login`] sets that of the servers.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lockgate::Error> {
    /// let sentinels = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let store =
    ///     lockgate::Store::sentinel(sentinels, "mymaster").namespace("shop").connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Each new connection asks all sentinels at once. When a master is replaced, its connections
    /// are given up as soon as one sentinel reports it, at the latest with the first write that it
    /// refuses. Leases are then checked against the new master, and waiters poll again. Writes that
    /// the old master had not replicated are lost: see
    /// [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    ///
    /// - No master is used during a promotion (about a second), so that no write goes to one that
    ///   is being replaced.
    /// - A master may be suspended until it has a successor. Its acknowledgements after that are
    ///   not trusted, whatever the [call timeout](StoreBuilder::call_timeout). It is not connected
    ///   to either, if `down-after-milliseconds` is at least four call timeouts, as it is by
    ///   default.
    /// - Writes to a master that is cut off from all sentinels, together with its clients, can't be
    ///   detected. `min-replicas-to-write` bounds them. Before version 7.0, Redis applies that
    ///   setting to plain commands only and not to scripts, so it has no effect on this crate.
    pub fn sentinel<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: &str,
    ) -> StoreBuilder {
        let urls = sentinels.into_iter().map(|url| url.as_ref().to_owned()).collect();
        StoreBuilder::new(ConnectionSource::Sentinels { urls, master: master.to_owned() })
    }

    /// Takes connections from a pool of the application.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use bb8_redis::{RedisConnectionManager, bb8};
    ///
    /// let manager = RedisConnectionManager::new("redis://127.0.0.1/")?;
    /// let pool = bb8::Pool::builder().max_size(16).build(manager).await?;
    /// let store = lockgate::Store::from_pool(pool).namespace("shop").connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// [`Store::connect`] is better in everything but the number of connections. With a pool:
    ///
    /// - [`StoreBuilder::connections_per_node`] connections are taken and kept, since a shared one
    ///   may be in the middle of another user's transaction. Acquires with `min_replicas` take one
    ///   more, and so does, for a moment, the probe after an outage. Make the pool larger than
    ///   that.
    /// - Taking a connection costs a `PING`, which is why they are kept.
    /// - A dead connection is noticed by the first call that fails on it, since the pool reports no
    ///   disconnects. It goes back to the pool, which finds out with its next `PING`.
    /// - No messages are received without [`StoreBuilder::pubsub_url`]. Waiters for a lock then
    ///   poll every 300 ms. An idle worker of a queue finds a task up to 5 s after its push. A
    ///   worker of deferred requests finds a job up to 5 s after it can run, or 10 s if there are
    ///   several workers.
    #[cfg(feature = "bb8-redis")]
    pub fn from_pool(pool: bb8::Pool<bb8_redis::RedisConnectionManager>) -> StoreBuilder {
        StoreBuilder::new(ConnectionSource::Pool(pool))
    }
}

impl Store {
    /// Connects to the cluster that these nodes belong to; each is
    /// `redis://[user:password@]host[:port]`. One node that answers is enough to find the others.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lockgate::Error> {
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let store = lockgate::Store::cluster(nodes).namespace("shop").connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Locks, quotas and deferred requests are divided into 64 shards, which are spread over the
    /// nodes. All guarantees about one lock, one resource or one subject are those of a single
    /// server.
    ///
    /// - While a node is unavailable, so are its shards. The others stay available, if the cluster
    ///   continues without it (`cluster-require-full-coverage no`).
    /// - While a slot migrates, calls about its shard are sent again until their deadlines.
    /// - Writes that a node had not replicated when it died are lost: see
    ///   [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    ///
    /// A node may be suspended until its replica has taken over. Its acknowledgements after that
    /// are not trusted. For that purpose the nodes are asked for `cluster-node-timeout`
    /// (`CONFIG GET`), and connections are pinged when they were idle for an eighth to a quarter of
    /// it. For nodes that do not tell, 5 s is assumed.
    pub fn cluster<U: AsRef<str>>(nodes: impl IntoIterator<Item = U>) -> StoreBuilder {
        let urls = nodes.into_iter().map(|url| url.as_ref().to_owned()).collect();
        StoreBuilder::new(ConnectionSource::Cluster(urls))
    }
}

impl StoreBuilder {
    fn new(origin: ConnectionSource) -> Self {
        Self {
            source: origin,
            overrides: ConnectionOverrides::default(),
            namespace: None,
            deadline: Duration::from_millis(250),
            connections: 2,
            replicas_on_disk: false,
        }
    }

    /// Sets the ACL user and the password, instead of those of the URL. Servers with only a
    /// password have the user `default`.
    ///
    /// A user needs the keys and channels of the namespace, and the commands that are not for
    /// operators:
    ///
    /// ```text
    /// ACL SETUSER app on >secret ~lg:1:shop:* resetchannels &lg:1:shop:* +@all -@dangerous +info
    /// ```
    ///
    /// By category, that is
    /// `+@read +@write +@scripting +@pubsub +@connection +time +wait -@dangerous`. A cluster also
    /// needs `+cluster|slots` (`+cluster` before Redis 7.0), after the rest.
    /// [`connect`](Self::connect) fails if the user may not run scripts, or use `TIME` or publish
    /// in them.
    ///
    /// Optional, after that:
    ///
    /// - `+info`: reports servers that are too old, are replicas or evict keys, and detects a
    ///   restarted server at once. Without it fences may go back after a failover to a replica that
    ///   lacks the last grants and has a clock that is behind, since nothing tells that it is
    ///   another server. A warning says so on connect.
    /// - `+config|get`: tells if snapshots are made, and in a cluster the `cluster-node-timeout`.
    ///
    /// The login of a store never changes. To change a password, give the user both
    /// (`ACL SETUSER app >new`), restart the processes one by one, and remove the old one (`<old`).
    /// Existing connections stay. A new connection with a removed password is refused.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        let login =
            LoginCredentials { user: Some(user.to_owned()), password: Some(password.to_owned()) };
        self.overrides.credentials = Some(login);
        self
    }

    /// Sets the number of the database, instead of that of the URL. Default 0, the only one of a
    /// cluster.
    pub fn database(mut self, number: u32) -> Self {
        self.overrides.database = Some(number);
        self
    }

    /// Sets the certificate authorities for `rediss://`, as one or more PEM certificates. Default:
    /// those that the system trusts.
    #[cfg(feature = "tls")]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.overrides.tls.ca_certificate = Some(pem.into());
        self
    }

    /// Sets the certificate chain and private key, as PEM, for servers that ask clients for one
    /// (`tls-auth-clients`).
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.overrides.tls.client_identity = Some((pem.into(), key.into()));
        self
    }

    /// Sets the source of messages for [`Store::from_pool`]: a URL of the same servers.
    ///
    /// A pool has no connection that can receive them. Without this setting, waiters for a lock
    /// poll every 300 ms and idle workers every 5 to 10 s.
    #[cfg(feature = "bb8-redis")]
    pub fn pubsub_url(mut self, url: &str) -> Self {
        self.overrides.pubsub_url = Some(url.to_owned());
        self
    }

    /// Sets the namespace: 1 to 32 of `a-z A-Z 0-9 _ -`. Default: `ns` of the URL, else `default`.
    ///
    /// Namespaces share nothing: the locks, quotas and jobs of two services on one Redis stay
    /// apart.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Sets the timeout of each call, capped at a year. Default 250 ms: far above a healthy round
    /// trip, far below the patience of a user. A call that takes longer counts as an outage, with
    /// an unknown outcome.
    ///
    /// A connection has to be made within two timeouts: that is 7 round trips with TLS, and up to
    /// 17 in a cluster. Set more for a server at a distance of 30 ms or more.
    ///
    /// After 5 consecutive failures calls fail at once, without being sent. A probe checks if the
    /// server is back: every 100 ms in the first second, then less often, at last about every
    /// second.
    pub fn call_timeout(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(MAX_DURATION);
        self
    }

    /// Sets the number of connections, 1 to 8; in a cluster, to each node. Default 2: requests are
    /// pipelined, so few connections carry many of them.
    pub fn connections_per_node(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Selects the replicas that count for [`min_replicas`](crate::lock::LockRequest::min_replicas)
    /// of locks and of deferred requests.
    ///
    /// - `false` (default): those that have the data in memory (`WAIT`), which takes a round trip
    ///   and no disk access.
    /// - `true`: those that have it on disk, and none unless the master has it on disk too
    ///   (`WAITAOF`).
    ///
    /// `true` needs Redis 7.2 or newer, or Valkey, and `appendonly yes` on the master and the
    /// replicas; a replica without it never counts. With `appendfsync everysec` disks are up to a
    /// second behind, so set a [call timeout](Self::call_timeout) of at least 2 s. If the server
    /// does not support it, a warning is logged, and memory counts.
    pub fn replicas_on_disk(mut self, on_disk: bool) -> Self {
        self.replicas_on_disk = on_disk;
        self
    }

    /// Connects; see [`Store::connect`].
    ///
    /// Cancel safe: a dropped future closes the connections that it has opened.
    ///
    /// # Errors
    ///
    /// Only errors of kind `Config`, with a message that names the problem.
    pub async fn connect(self) -> Result<Store, Error> {
        let redis = self.build()?;
        match redis.ping().await {
            Err(error) if error.kind() == ErrorKind::Config => return Err(error),
            Err(error) => tracing::warn!(
                %error, "the store is unavailable at startup; connecting in the background"
            ),
            Ok(()) => {}
        }
        Ok(Store::with_backend(Arc::new(redis)))
    }
}

impl IntoFuture for StoreBuilder {
    type Output = Result<Store, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`connect`](Self::connect).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.connect())
    }
}

impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
