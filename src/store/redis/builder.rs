//! From a URL to a store.

use std::{fmt, sync::Arc, time::Duration};

use redis::{IntoConnectionInfo as _, ProtocolVersion, io::tcp::socket2::TcpKeepalive};

use super::{
    Breaker, Charges, Combiner, Enqueues, Keys, Lanes, Pushes, Redis, Runs, Wire,
    script::{CALLS, CHARGE, ENQUEUE, PUSH_TASKS, RUNS},
    target::{One, Target},
};
use crate::{
    error::{Error, ErrorKind},
    store::{Store, backend::Backend as _},
};

/// Longest namespace, in bytes.
const NAMESPACE: usize = 32;

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
    url: String,
    namespace: Option<String>,
    deadline: Duration,
    connections: usize,
}

impl Store {
    /// Connects to `redis://[user:password@]host[:port][/db][?ns=namespace]`.
    ///
    /// A server that is away is no error here: it is an outage like any later one, and the layers
    /// answer by their policy until it is back.
    ///
    /// # Errors
    ///
    /// Of kind `Config` alone: a URL that can't be read, a wrong password, another number of shards
    /// in this namespace.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// As [`Store::connect`], with settings.
    pub fn builder(url: &str) -> StoreBuilder {
        StoreBuilder {
            url: url.to_owned(),
            namespace: None,
            deadline: Duration::from_millis(250),
            connections: 2,
        }
    }
}

impl StoreBuilder {
    /// Nothing is shared across namespaces: locks, quotas and jobs of two services on one Redis stay
    /// apart. 1 to 32 of `a-z A-Z 0-9 _ -`. Default: `ns` of the URL, else `default`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// How long any one call may take. Default 250 ms: far above a healthy round trip, far below what
    /// a user would wait. A call that takes longer counts as an outage, with its outcome unknown.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Number of sockets, 1 to 8. Default 2: requests pipeline, so few sockets carry many requests.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Connects; see [`Store::connect`].
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
        Ok(Store::on(Arc::new(redis)))
    }

    fn build(self) -> Result<Redis, Error> {
        // Never the URL itself in a message: it may hold a password.
        let unreadable =
            || Error::config("the store's URL can't be read; expected redis://host:port/db");
        let mut url = url::Url::parse(&self.url).map_err(|_| unreadable())?;
        if url.scheme() == "rediss" || url.scheme() == "valkeys" {
            return Err(Error::config("TLS (rediss://) is not supported by this version"));
        }
        let namespace = self.namespace.or_else(|| {
            url.query_pairs().find(|(name, _)| name == "ns").map(|(_, value)| value.into_owned())
        });
        let namespace = checked_namespace(namespace)?;
        if self.deadline < Duration::from_millis(1) {
            return Err(Error::config("a store needs a deadline of at least 1 ms"));
        }
        if !(1..=8).contains(&self.connections) {
            return Err(Error::config("a store needs 1 to 8 connections"));
        }
        url.set_query(None);
        let info = url.into_connection_info().map_err(|_| unreadable())?;
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(15))
            .with_interval(Duration::from_secs(5));
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
        // RESP3, for the push that tells of a disconnect.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = redis::Client::open(info).map_err(|_| unreadable())?;
        let target = Target::One(One { client });
        let keys = Keys::new(&namespace);
        let lanes = Arc::new(Lanes::new(&target, &keys, self.connections, self.deadline));
        let combiner = |lane| {
            let wire = Wire { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(wire, CALLS.name, self.deadline)
        };
        let charges = |lane| {
            let charges = Charges { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(charges, CHARGE.name, self.deadline)
        };
        let runs = |lane| {
            let runs = Runs { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(runs, RUNS.name, self.deadline)
        };
        let enqueues = |lane| {
            let enqueues = Enqueues { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(enqueues, ENQUEUE.name, self.deadline)
        };
        let process: Arc<str> = uuid::Uuid::new_v4().simple().to_string()[..16].into();
        let pushes = |lane| {
            let process = Arc::clone(&process);
            let pushes = Pushes { lanes: Arc::clone(&lanes), lane, keys: keys.clone(), process };
            Combiner::new(pushes, PUSH_TASKS.name, self.deadline)
        };
        Ok(Redis {
            enqueues: (0..self.connections).map(enqueues).collect(),
            runs: (0..self.connections).map(runs).collect(),
            pushes: (0..self.connections).map(pushes).collect(),
            // A slot that holds nothing holds 0.
            pushed: 1.into(),
            charges: (0..self.connections).map(charges).collect(),
            combiners: (0..self.connections).map(combiner).collect(),
            lanes,
            breaker: Arc::new(Breaker::default()),
            replicas: super::Replicas::default(),
            target,
            keys,
            deadline: self.deadline,
        })
    }
}

fn checked_namespace(namespace: Option<String>) -> Result<String, Error> {
    let Some(namespace) = namespace else {
        tracing::info!("no namespace given: using `default` (add ?ns=NAME to the store's URL)");
        return Ok("default".to_owned());
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if namespace.is_empty() || namespace.len() > NAMESPACE || !namespace.bytes().all(plain) {
        return Err(Error::config("a namespace is 1 to 32 of a-z, A-Z, 0-9, _ and -"));
    }
    Ok(namespace)
}

impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
