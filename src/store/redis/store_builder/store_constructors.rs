//! Constructors of [`Store`] for Redis and Valkey: single server, Sentinel, cluster, or a pool.

use super::{super::connection_source::ConnectionSource, StoreBuilder};
use crate::{error::Error, store::Store};

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
    ///   several workers. Changed policies apply within about a second. The process answers no
    ///   inquiries of operators, cannot be drained, and what it runs is not told of a cancellation.
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
