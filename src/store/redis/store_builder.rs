//! `StoreBuilder`: settings of a store on Redis or Valkey.

mod assemble_backend;
mod store_constructors;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{
    connection_source::{ConnectionOverrides, ConnectionSource},
    target::LoginCredentials,
};
use crate::{
    durations::MAX_DURATION,
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
    writes_on_connect: bool,
}

impl StoreBuilder {
    fn new(source: ConnectionSource) -> Self {
        Self {
            source,
            overrides: ConnectionOverrides::default(),
            namespace: None,
            deadline: Duration::from_millis(250),
            connections: 2,
            replicas_on_disk: false,
            writes_on_connect: true,
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
        let credentials =
            LoginCredentials { user: Some(user.to_owned()), password: Some(password.to_owned()) };
        self.overrides.credentials = Some(credentials);
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

    /// Sets whether a connect may write. Default `true`: it creates a namespace that does not exist
    /// yet, and raises the fences after a failover.
    ///
    /// Set `false` in a program that only looks at a store, as the program `lockgate` does: a
    /// mistyped namespace then stays unused. Take no locks with such a store, since their fences
    /// could repeat those from before a failover.
    pub fn writes_on_connect(mut self, writes: bool) -> Self {
        self.writes_on_connect = writes;
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
        let backend = self.assemble_backend()?;
        match backend.ping().await {
            Err(error) if error.kind() == ErrorKind::Config => return Err(error),
            Err(error) => tracing::warn!(
                %error, "the store is unavailable at startup; connecting in the background"
            ),
            Ok(()) => {}
        }
        Ok(Store::with_backend(Arc::new(backend)))
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
