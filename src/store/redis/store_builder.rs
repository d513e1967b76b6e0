//! From a URL to a store.

mod build;

use std::{fmt, sync::Arc, time::Duration};

use super::{
    connection_source::{ConnectionOverrides, ConnectionSource},
    target::LoginCredentials,
};
use crate::{
    clock::MAX_DURATION,
    error::{Error, ErrorKind},
    store::{Store, backend::Backend as _},
};

/// How to reach a Redis or Valkey server (6.2 or newer), and how to use it.
///
/// ```no_run
/// # async fn example() -> Result<(), lockgate::Error> {
/// use std::time::Duration;
///
/// let store = lockgate::Store::builder("redis://127.0.0.1/")
///     .namespace("shop")
///     .deadline(Duration::from_millis(100))
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
    /// Connects to a URL:
    ///
    /// | Servers | URL |
    /// |---|---|
    /// | one | `redis://[user:password@]host[:port][/db]` |
    /// | one, on a unix socket | `unix:///path[?db=&user=&pass=]` |
    /// | a master that sentinels watch | `redis+sentinel://[user:password@]host[:port],host[:port]/master[/db]` |
    /// | a cluster, by some of its nodes | `redis+cluster://[user:password@]host[:port],host[:port]` |
    ///
    /// with `?ns=namespace` behind it. `rediss` instead of `redis` is TLS (feature `tls`; certificates by
    /// [`Store::builder`]), `valkey` and `valkeys` mean the same as `redis` and `rediss`. User and password
    /// are those of the servers, percent-encoded; sentinels that want a login of their own get it from
    /// `sentinel_user=` and `sentinel_password=`.
    ///
    /// A server that is away is no error here: it is an outage like any later one, and the layers
    /// answer by their policy until it is back.
    ///
    /// # Errors
    ///
    /// Of kind `Config` alone: a URL that can't be read, a wrong password, a user who may not do what is needed
    /// ([`StoreBuilder::login`]), a server older than Redis 6.2, a namespace that a version with another
    /// layout uses; for `rediss` also a certificate that is not trusted and a
    /// missing crypto provider, for sentinels a master of whom they do not know.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// As [`Store::connect`], with settings.
    pub fn builder(url: &str) -> StoreBuilder {
        StoreBuilder::new(ConnectionSource::Url(url.to_owned()))
    }

    /// The master of this name, as these sentinels know it at the time; each is
    /// `redis://[user:password@]host[:port]`, with the login of the sentinels. That of the servers is given by
    /// [`StoreBuilder::login`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lockgate::Error> {
    /// let sentinels = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let store = lockgate::Store::sentinel(sentinels, "mymaster").namespace("shop").connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Each new connection asks all of them at once. When a master is replaced, its sockets are left as soon as one
    /// sentinel says so, and at the latest at the first write that it refuses; leases that are held are checked
    /// against the new master, and those who wait look again. What the old master had not yet passed on is lost: see
    /// [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    ///
    /// From when sentinels are about to promote the successor until they know that it is one (a second, about), no
    /// master is used, so that nothing is written to one that is thrown away. What a master acknowledges that stood
    /// still until it was replaced is not believed, however long the [deadline](StoreBuilder::call_timeout) is, and it is
    /// not connected to either, if `down-after-milliseconds` is four deadlines or more: as it is by default. What
    /// clients still write to a master that is cut off from all sentinels, as they themselves are, nobody can tell:
    /// `min-replicas-to-write` bounds it. Before version 7.0, Redis applies that setting to plain
    /// commands only and not to scripts, so it has no effect on this crate.
    pub fn sentinel<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: &str,
    ) -> StoreBuilder {
        let urls = sentinels.into_iter().map(|url| url.as_ref().to_owned()).collect();
        StoreBuilder::new(ConnectionSource::Sentinels { urls, master: master.to_owned() })
    }

    /// Takes its connections out of a pool that the application has.
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
    /// [`Store::connect`] does better in all but the number of sockets. Of a pool
    ///
    /// - as many connections as [`StoreBuilder::connections_per_node`] says are taken and kept, since what is shared
    ///   with others may be in the middle of their transaction; a grant for `replicas` takes one more, and so
    ///   does, for a moment, the look whether a server is back. Let the pool be larger than that.
    /// - each one that is taken costs a `PING`, which is why they are kept;
    /// - a connection that has died is noticed by the first call that fails on it, and not before: nobody
    ///   tells of a disconnect. It goes back to the pool, which finds out at its next `PING`;
    /// - nothing can be heard, unless [`StoreBuilder::pubsub_url`] says where messages come from. Who waits for a lock looks
    ///   every 300 ms instead of being told. Workers are not told of work: one of a queue that has nothing to do finds a
    ///   task up to 5 s after it was pushed, and one of deferred requests up to 5 s after it can run, or 10 s where there
    ///   are several.
    #[cfg(feature = "bb8-redis")]
    pub fn from_pool(pool: bb8::Pool<bb8_redis::RedisConnectionManager>) -> StoreBuilder {
        StoreBuilder::new(ConnectionSource::Pool(pool))
    }
}

impl Store {
    /// The cluster that these nodes belong to; each is `redis://[user:password@]host[:port]`. One that answers is
    /// enough: the others are found by it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lockgate::Error> {
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let store = lockgate::Store::cluster(nodes).namespace("shop").connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Locks, quotas and deferred requests are divided into 64 shards, which are spread over the nodes. All that
    /// is promised about one lock, one resource or one subject holds as on one server. While a node is away, what it has
    /// is away, and only that, as far as the cluster goes on without it (`cluster-require-full-coverage no`); while a slot
    /// moves to another node, calls about its shard are tried again until their deadline. What a node had not yet passed
    /// on to its replica when it died is lost: see [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    ///
    /// What a node acknowledges that stood still until its replica took over is not believed. For that, nodes are asked
    /// for their `cluster-node-timeout` (`CONFIG GET`), and idle connections for a sign of life in an eighth of it to a
    /// quarter. Where they do not tell, 5 s is what it is taken for.
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

    /// The user (of an ACL) and the password to log in with, instead of those of the URL. The user
    /// `default` is the one of servers that have a password alone.
    ///
    /// A user needs the keys and the channels of the namespace, and what is not for operators:
    ///
    /// ```text
    /// ACL SETUSER app on >secret ~lg:1:shop:* resetchannels &lg:1:shop:* +@all -@dangerous +info
    /// ```
    ///
    /// One category at a time, that is `+@read +@write +@scripting +@pubsub +@connection +time +wait -@dangerous`. In a
    /// cluster `+cluster|slots` besides (`+cluster` before Redis 7.0), behind the rest. Who may not run scripts, ask for
    /// the time in them or publish is told when it connects. Not needed, but of use, behind that:
    ///
    /// - `+info`: a server that is too old, a replica, or one that drops keys is told, and one that was started again is
    ///   known as such at once. Without it fences may go back after a failover to a replica that lacks the last grants
    ///   and whose clock is behind: nothing tells that it is another server. A warning says so when it connects;
    /// - `+config|get`: whether snapshots are made, and in a cluster its `cluster-node-timeout`.
    ///
    /// The login stays as it is given here. For another password, let the user have both (`ACL SETUSER app >new`), start
    /// the processes again one by one, and take the old one away (`<old`). What is connected stays so; a connection that
    /// is made with a password that is gone is refused.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        let login =
            LoginCredentials { user: Some(user.to_owned()), password: Some(password.to_owned()) };
        self.overrides.credentials = Some(login);
        self
    }

    /// Number of the database, instead of that of the URL. Default 0. A cluster has no other.
    pub fn database(mut self, number: u32) -> Self {
        self.overrides.database = Some(number);
        self
    }

    /// Who may vouch for the servers with `rediss://`, instead of those that the system trusts: one or more
    /// certificates, as PEM.
    #[cfg(feature = "tls")]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.overrides.tls.ca_certificate = Some(pem.into());
        self
    }

    /// What is shown to servers that ask for a certificate (`tls-auth-clients`): the chain and its private
    /// key, as PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.overrides.tls.client_identity = Some((pem.into(), key.into()));
        self
    }

    /// Where messages come from, for [`Store::from_pool`]: the URL of the same servers. A pool has no
    /// connection that could hear them; without this, who waits for a lock looks every 300 ms instead of being told, and
    /// workers that have nothing to do every 5 to 10 s, as said there.
    #[cfg(feature = "bb8-redis")]
    pub fn pubsub_url(mut self, url: &str) -> Self {
        self.overrides.pubsub_url = Some(url.to_owned());
        self
    }

    /// Nothing is shared across namespaces: locks, quotas and jobs of two services on one Redis stay
    /// apart. 1 to 32 of `a-z A-Z 0-9 _ -`. Default: `ns` of the URL, else `default`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// How long any one call may take, at most a year. Default 250 ms: far above a healthy round trip, far below what
    /// a user would wait. A call that takes longer counts as an outage, with its outcome unknown.
    ///
    /// A connection has to be made in two of them: 7 round trips with TLS, in a cluster up to 17. Give more to a server that is
    /// 30 ms away or further.
    ///
    /// After 5 failures in a row no call is sent any more, and each fails at once; a probe looks whether the server is
    /// back: every 100 ms, after a second less and less often, and in the end every second, about.
    pub fn call_timeout(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(MAX_DURATION);
        self
    }

    /// Number of sockets, 1 to 8; in a cluster, to each node. Default 2: requests pipeline, so few sockets carry many requests.
    pub fn connections_per_node(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// What [`replicas`](crate::lock::LockRequest::min_replicas) counts, of locks and of deferred requests: with `true`
    /// those that have it on their disk, and none unless the server itself has (`WAITAOF`). Default `false`: those
    /// that have it in their memory (`WAIT`), which takes a round trip and not a disk's time.
    ///
    /// It needs Redis 7.2 or newer, or Valkey, and `appendonly yes` there and on the replicas, or none of them will
    /// count. With `appendfsync everysec` disks are up to a second behind, so the [`deadline`](Self::call_timeout) has to
    /// be 2 s or more. Where the server can't tell, that is logged and what is in memory counts.
    pub fn replicas_on_disk(mut self, on_disk: bool) -> Self {
        self.replicas_on_disk = on_disk;
        self
    }

    /// Connects; see [`Store::connect`].
    ///
    /// Cancel safe: a dropped future closes what it has opened.
    ///
    /// # Errors
    ///
    /// Of kind `Config` alone, with a sentence that says what is wrong.
    pub async fn connect(self) -> Result<Store, Error> {
        let redis = self.build()?;
        match redis.ping().await {
            Err(error) if error.kind() == ErrorKind::Config => return Err(error),
            Err(error) => tracing::warn!(%error, "the store is away; connected lazily"),
            Ok(()) => {}
        }
        Ok(Store::with_backend(Arc::new(redis)))
    }
}

impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
