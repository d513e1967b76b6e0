//! Clusters of the tests' own.

mod node;

use std::time::Duration;

use redis::{Value, aio::MultiplexedConnection};
use tokio::sync::OnceCell;

use self::node::Node;
pub(in crate::store) use self::node::free_port;
pub(crate) use self::node::signal;
pub(super) use self::node::{directory, keeper};
use crate::store::{Store, StoreBuilder};

const SLOTS: usize = 16_384;

/// Ports of a cluster that all test processes of a run share (`cargo xtask test`).
const SHARED_BY_PROCESSES: &str = "LOCKGATE_TESTS_CLUSTER";

/// One for all tests of this process: it takes seconds to form. Nothing ends a static, so its servers end by
/// themselves when this process has.
static SHARED: OnceCell<Cluster> = OnceCell::const_new();

/// Masters first, then a replica of each, if there are any.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
}

impl Cluster {
    /// Three masters, which no test may treat badly.
    pub(crate) async fn shared() -> &'static Self {
        SHARED
            .get_or_init(async || match std::env::var(SHARED_BY_PROCESSES) {
                Ok(ports) => {
                    let ports = ports.split(',').map(|port| port.parse().expect("a port"));
                    Self { nodes: ports.map(Node::of_another_process).collect() }
                }
                Err(_) => Self::start(3, false, Duration::from_secs(30)).await,
            })
            .await
    }

    /// `timeout`: how soon a node that does not answer counts as gone.
    pub(crate) async fn start(masters: usize, replicas: bool, timeout: Duration) -> Self {
        Self::start_with(masters, replicas, timeout, &[]).await
    }

    /// With these words on each node's command line; those about TLS give it another port for that.
    pub(crate) async fn start_with(
        masters: usize,
        replicas: bool,
        timeout: Duration,
        words: &[String],
    ) -> Self {
        let number = if replicas { 2 * masters } else { masters };
        let nodes = (0..number).map(|_| Node::spawn(timeout, words)).collect();
        let cluster = Self { nodes };
        for at in 0..number {
            cluster.answers(at).await;
        }
        for at in 0..masters {
            let [from, to] = [at, at + 1].map(|n| n * SLOTS / masters);
            // Each by its number: servers before 7.0 know no ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            cluster.command(at, &words).await;
            cluster.command(at, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await;
        }
        for at in 1..number {
            let port = cluster.nodes[at].port_of_peers().to_string();
            cluster.command(0, &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
        }
        let known = format!("cluster_known_nodes:{number}");
        cluster.settles(|info| info.contains(&known)).await;
        for at in masters..number {
            let id: String = cluster.ask(at - masters, &["CLUSTER", "MYID"]).await;
            cluster.command(at, &["CLUSTER", "REPLICATE", &id]).await;
        }
        cluster.settles(|info| info.contains("cluster_state:ok")).await;
        for at in masters..number {
            cluster
                .until(at, &["INFO", "replication"], |info| info.contains("link_status:up"))
                .await;
        }
        cluster
    }

    /// Of one node: the others are found.
    pub(crate) fn url(&self, namespace: &str) -> String {
        format!("redis+cluster://127.0.0.1:{}/?ns={namespace}", self.nodes[0].port)
    }

    /// As [`Cluster::url`], by TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn url_of_tls(&self, namespace: &str) -> String {
        format!("rediss+cluster://127.0.0.1:{}/?ns={namespace}", self.nodes[0].port_of_peers())
    }

    pub(crate) fn builder(&self, namespace: &str) -> StoreBuilder {
        Store::builder(&self.url(namespace))
    }

    /// As ask, for those who want no answer.
    pub(crate) async fn command(&self, at: usize, words: &[&str]) {
        let _: Value = self.ask(at, words).await;
    }

    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, at: usize, words: &[&str]) -> T {
        let mut connection = self.connection(at).await.expect("it runs");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await.expect("the command is right")
    }

    pub(crate) async fn connection(&self, at: usize) -> Option<MultiplexedConnection> {
        let client = redis::Client::open(("127.0.0.1", self.nodes[at].port)).ok()?;
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(20)))
            .set_response_timeout(Some(Duration::from_secs(20)));
        client.get_multiplexed_async_connection_with_config(&patient).await.ok()
    }

    /// Whether its nodes have channels of shards (7.0).
    pub(crate) async fn tells_shards(&self) -> bool {
        let info: String = self.ask(0, &["INFO", "server"]).await;
        !info.contains("redis_version:6.")
    }

    /// SIGKILL, SIGSTOP.
    pub(crate) async fn signal(&self, at: usize, name: &str) {
        signal(&self.process(at).await, name);
    }

    /// The number of a node's process, for [`signal`]: it can't be asked while it stands still.
    pub(crate) async fn process(&self, at: usize) -> String {
        let info: String = self.ask(at, &["INFO", "server"]).await;
        let found = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        found.expect("its id").trim().to_owned()
    }

    /// The slot of a shard.
    pub(crate) async fn slot(&self, shard: u16) -> u16 {
        self.ask(0, &["CLUSTER", "KEYSLOT", &format!("{{{shard}}}")]).await
    }

    /// Which node has a slot, by its own word.
    pub(crate) async fn owner(&self, slot: u16) -> usize {
        for at in 0..self.nodes.len() {
            let nodes: String = self.ask(at, &["CLUSTER", "NODES"]).await;
            let own = nodes.lines().find(|line| line.contains("myself")).expect("itself");
            let has = |range: &str| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let [first, last] = [first, last].map(|n| n.parse::<u16>().unwrap_or(u16::MAX));
                (first..=last).contains(&slot)
            };
            if own.contains("master") && own.split(' ').skip(8).any(has) {
                return at;
            }
        }
        panic!("nobody has slot {slot}")
    }

    /// A slot is on its way from now on.
    pub(crate) async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let [giver, taker]: [String; 2] = [self.id(from).await, self.id(to).await];
        let slot = slot.to_string();
        self.command(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &giver]).await;
        self.command(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &taker]).await;
    }

    /// Its keys go, some at a time, and then it has arrived.
    pub(crate) async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (taker, slot) = (self.id(to).await, slot.to_string());
        let port = self.nodes[to].port_of_peers().to_string();
        loop {
            let keys: Vec<String> = self.ask(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "5"]).await;
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.command(from, &words).await;
        }
        let others = (0..self.nodes.len()).filter(|at| *at != from && *at != to);
        for at in [to, from].into_iter().chain(others) {
            self.command(at, &["CLUSTER", "SETSLOT", &slot, "NODE", &taker]).await;
        }
    }

    async fn id(&self, at: usize) -> String {
        self.ask(at, &["CLUSTER", "MYID"]).await
    }

    async fn answers(&self, at: usize) {
        for _ in 0..1000 {
            if self.connection(at).await.is_some() {
                return;
            }
            // A process tells nobody when it starts to listen.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server on port {} does not answer", self.nodes[at].port);
    }

    async fn settles(&self, done: impl Fn(&str) -> bool) {
        for at in 0..self.nodes.len() {
            self.until(at, &["CLUSTER", "INFO"], &done).await;
        }
    }

    /// Asks a node until it says so: nodes tell nobody what they have heard from each other.
    pub(crate) async fn until(&self, at: usize, words: &[&str], done: impl Fn(&str) -> bool) {
        for _ in 0..3000 {
            let text: String = self.ask(at, words).await;
            if done(&text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the cluster does not settle");
    }
}

/// The shared cluster, through a namespace of its own.
pub(super) struct Space {
    cluster: &'static Cluster,
    namespace: String,
}

impl Space {
    pub(super) async fn new() -> Self {
        let namespace = uuid::Uuid::new_v4().simple().to_string();
        Self { cluster: Cluster::shared().await, namespace }
    }

    pub(super) async fn tells_shards(&self) -> bool {
        self.cluster.tells_shards().await
    }

    pub(super) async fn store(&self) -> Store {
        let builder = self.cluster.builder(&self.namespace);
        // Far more than a call takes: a loaded machine is no outage.
        builder.call_timeout(Duration::from_secs(20)).connect().await.expect("the URL is right")
    }

    /// Nobody is known to live; if it is broken, no script can ask either.
    pub(super) async fn forget_workers(&self, broken: bool) {
        let key = format!("lg:1:{}:{{0}}:workers", self.namespace);
        let at = self.cluster.owner(self.cluster.slot(0).await).await;
        self.cluster.command(at, &["DEL", &key]).await;
        if broken {
            self.cluster.command(at, &["RPUSH", &key, "broken"]).await;
        }
    }

    /// A name of this namespace that is about no shard, with whoever has its slot.
    pub(super) async fn set_odd(&self, name: &str) {
        let name = format!("lg:1:{}:{name}", self.namespace);
        let slot = self.cluster.ask(0, &["CLUSTER", "KEYSLOT", &name]).await;
        self.cluster.command(self.cluster.owner(slot).await, &["SET", &name, "x"]).await;
    }

    /// A command about a key of a shard, to whoever has it.
    pub(super) async fn raw<T: redis::FromRedisValue>(
        &self,
        shard: u16,
        verb: &str,
        kind: &str,
        rest: &[&str],
    ) -> T {
        let owner = self.cluster.owner(self.cluster.slot(shard).await).await;
        let name = format!("lg:1:{}:{{{shard}}}:{kind}", self.namespace);
        self.cluster.ask(owner, &[&[verb, &name], rest].concat()).await
    }

    /// As that of one server, on each node.
    pub(super) async fn shift(&self, ms: i64) {
        self.everywhere(include_str!("shift_times.lua"), &[&ms.to_string()]).await;
    }

    /// As that of one server, on each node.
    pub(super) async fn clear(&self) {
        self.everywhere(super::server::CLEAR, &[]).await;
    }

    async fn everywhere(&self, script: &str, rest: &[&str]) {
        let prefix = format!("lg:1:{}:", self.namespace);
        for at in 0..self.cluster.nodes.len() {
            self.cluster.command(at, &[&["EVAL", script, "0", &prefix], rest].concat()).await;
        }
    }
}
