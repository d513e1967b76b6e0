//! From a URL to a store.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    Charges, Combiner, Enqueues, Keys, Lanes, Pushes, Redis, Runs, Wire,
    script::{CALLS, CHARGE, ENQUEUE, PUSH_TASKS, RUNS},
    target::{Address, Login, Nodes, SENTINEL, Target, Trust},
};
use crate::{
    error::{Error, ErrorKind},
    store::{Store, backend::Backend as _},
};

/// Where servers listen, unless told otherwise.
const REDIS: u16 = 6379;

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
    from: Origin,
    login: Login,
    database: Option<u32>,
    trust: Trust,
    namespace: Option<String>,
    deadline: Duration,
    connections: usize,
}

/// What the application has said of the servers.
#[derive(Clone)]
enum Origin {
    Url(String),
    Sentinels { urls: Vec<String>, master: String },
    Cluster(Vec<String>),
}

impl Origin {
    fn address(&self) -> Result<Address, Error> {
        match self {
            Self::Url(url) => Address::parse(url),
            Self::Sentinels { urls, master } => sentinels(urls, master),
            Self::Cluster(urls) => cluster(urls),
        }
    }
}

fn sentinels(urls: &[String], master: &str) -> Result<Address, Error> {
    let nodes = urls.iter().map(|url| Address::node(url, SENTINEL));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
    let Some((_, tls, login)) = nodes.first().cloned() else {
        return Err(Error::config("a store needs at least one sentinel"));
    };
    if master.is_empty() {
        return Err(Error::config("sentinels are asked for a master by its name; it is empty"));
    }
    if nodes.iter().any(|(_, other_tls, other)| (*other_tls, other) != (tls, &login)) {
        return Err(Error::config("all sentinels have the same login, and all TLS or none"));
    }
    let nodes = nodes.into_iter().map(|(node, ..)| node).collect();
    Ok(Address {
        nodes: Nodes::Sentinels { nodes, master: master.to_owned() },
        tls,
        login: Login::default(),
        sentinel_login: login,
        database: None,
        namespace: None,
    })
}

fn cluster(urls: &[String]) -> Result<Address, Error> {
    let nodes = urls.iter().map(|url| Address::node(url, REDIS));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
    let Some((_, tls, login)) = nodes.first().cloned() else {
        return Err(Error::config("a store needs at least one node of its cluster"));
    };
    if nodes.iter().any(|(_, other_tls, other)| (*other_tls, other) != (tls, &login)) {
        return Err(Error::config("all nodes have the same login, and all TLS or none"));
    }
    Ok(Address {
        nodes: Nodes::Cluster(nodes.into_iter().map(|(node, ..)| node).collect()),
        tls,
        login,
        sentinel_login: Login::default(),
        database: None,
        namespace: None,
    })
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
    /// Of kind `Config` alone: a URL that can't be read, a wrong password, another number of shards
    /// in this namespace.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// As [`Store::connect`], with settings.
    pub fn builder(url: &str) -> StoreBuilder {
        StoreBuilder::new(Origin::Url(url.to_owned()))
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
    /// Each new connection asks all of them at once. When a master is replaced, its sockets are closed at the
    /// first write that it refuses, leases that are held are checked against the new master, and those who
    /// wait look again. What the old master had not yet passed on is lost: see
    /// [`LockRequest::replicas`](crate::lock::LockRequest::replicas).
    pub fn sentinel<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: &str,
    ) -> StoreBuilder {
        let urls = sentinels.into_iter().map(|url| url.as_ref().to_owned()).collect();
        StoreBuilder::new(Origin::Sentinels { urls, master: master.to_owned() })
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
    /// on to its replica when it died is lost: see [`LockRequest::replicas`](crate::lock::LockRequest::replicas).
    pub fn cluster<U: AsRef<str>>(nodes: impl IntoIterator<Item = U>) -> StoreBuilder {
        let urls = nodes.into_iter().map(|url| url.as_ref().to_owned()).collect();
        StoreBuilder::new(Origin::Cluster(urls))
    }
}

impl StoreBuilder {
    fn new(from: Origin) -> Self {
        Self {
            from,
            login: Login::default(),
            database: None,
            trust: Trust::default(),
            namespace: None,
            deadline: Duration::from_millis(250),
            connections: 2,
        }
    }

    /// The user (of an ACL) and the password to log in with, instead of those of the URL. The user
    /// `default` is the one of servers that have a password alone.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Login { user: Some(user.to_owned()), password: Some(password.to_owned()) };
        self
    }

    /// Number of the database, instead of that of the URL. Default 0. A cluster has no other.
    pub fn database(mut self, number: u32) -> Self {
        self.database = Some(number);
        self
    }

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

    /// Number of sockets, 1 to 8; in a cluster, to each node. Default 2: requests pipeline, so few sockets carry many requests.
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
        let mut address = self.from.address()?;
        if self.login != Login::default() {
            address.login = self.login;
        }
        address.database = self.database.or(address.database);
        let namespace = checked_namespace(self.namespace.or(address.namespace.take()))?;
        if self.deadline < Duration::from_millis(1) {
            return Err(Error::config("a store needs a deadline of at least 1 ms"));
        }
        if !(1..=8).contains(&self.connections) {
            return Err(Error::config("a store needs 1 to 8 connections"));
        }
        let target = Target::new(&address, &self.trust, self.deadline)?;
        let keys = Keys::new(&namespace);
        let keys = if target.is_apart() { keys.apart() } else { keys };
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
            enqueues: (0..lanes.number()).map(enqueues).collect(),
            runs: (0..lanes.number()).map(runs).collect(),
            pushes: (0..lanes.number()).map(pushes).collect(),
            // A slot that holds nothing holds 0.
            pushed: 1.into(),
            charges: (0..lanes.number()).map(charges).collect(),
            combiners: (0..lanes.number()).map(combiner).collect(),
            health: super::Health::all(&lanes, &keys),
            lanes,
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
