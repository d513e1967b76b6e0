//! Clusters of the tests' own.

mod node_process;

use std::time::Duration;

use redis::{Value, aio::MultiplexedConnection};
use tokio::sync::OnceCell;

use self::node_process::NodeProcess;
pub(in crate::store) use self::node_process::free_port;
pub(crate) use self::node_process::send_signal;
pub(super) use self::node_process::{supervised_server_command, temporary_server_directory};
use crate::store::{Store, StoreBuilder};

const SLOT_COUNT: usize = 16_384;

/// Ports of a cluster that all test processes of a run share (`cargo xtask test`).
const CLUSTER_PORTS_VAR: &str = "LOCKGATE_TESTS_CLUSTER";

/// One for all tests of this process: it takes seconds to form. Nothing ends a static, so its servers end by
/// themselves when this process has.
static SHARED_CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();

/// Masters first, then a replica of each, if there are any.
pub(crate) struct TestCluster {
    nodes: Vec<NodeProcess>,
}

impl TestCluster {
    /// Three masters, which no test may treat badly.
    pub(crate) async fn shared() -> &'static Self {
        SHARED_CLUSTER
            .get_or_init(async || match std::env::var(CLUSTER_PORTS_VAR) {
                Ok(ports) => {
                    let ports = ports.split(',').map(|port| port.parse().expect("a port"));
                    Self { nodes: ports.map(NodeProcess::from_port).collect() }
                }
                Err(_) => Self::start(3, false, Duration::from_secs(30)).await,
            })
            .await
    }

    /// `timeout`: how soon a node that does not answer counts as gone.
    pub(crate) async fn start(masters: usize, replicas: bool, timeout: Duration) -> Self {
        Self::start_with_args(masters, replicas, timeout, &[]).await
    }

    /// With these words on each node's command line; those about TLS give it another port for that.
    pub(crate) async fn start_with_args(
        masters: usize,
        replicas: bool,
        timeout: Duration,
        words: &[String],
    ) -> Self {
        let number = if replicas { 2 * masters } else { masters };
        let nodes = (0..number).map(|_| NodeProcess::spawn(timeout, words)).collect();
        let cluster = Self { nodes };
        for at in 0..number {
            cluster.wait_until_node_answers(at).await;
        }
        for at in 0..masters {
            let [from, to] = [at, at + 1].map(|n| n * SLOT_COUNT / masters);
            // Each by its number: servers before 7.0 know no ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            cluster.send_command(at, &words).await;
            cluster.send_command(at, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await;
        }
        for at in 1..number {
            let port = cluster.nodes[at].peer_port().to_string();
            cluster.send_command(0, &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
        }
        let known = format!("cluster_known_nodes:{number}");
        cluster.wait_until_all_nodes(|info| info.contains(&known)).await;
        for at in masters..number {
            let id: String = cluster.query(at - masters, &["CLUSTER", "MYID"]).await;
            cluster.send_command(at, &["CLUSTER", "REPLICATE", &id]).await;
        }
        cluster.wait_until_all_nodes(|info| info.contains("cluster_state:ok")).await;
        for at in masters..number {
            cluster
                .wait_until_node(at, &["INFO", "replication"], |info| {
                    info.contains("link_status:up")
                })
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
    pub(crate) fn tls_url(&self, namespace: &str) -> String {
        format!("rediss+cluster://127.0.0.1:{}/?ns={namespace}", self.nodes[0].peer_port())
    }

    pub(crate) fn store_builder(&self, namespace: &str) -> StoreBuilder {
        Store::builder(&self.url(namespace))
    }

    /// As ask, for those who want no answer.
    pub(crate) async fn send_command(&self, at: usize, words: &[&str]) {
        let _: Value = self.query(at, words).await;
    }

    pub(crate) async fn query<T: redis::FromRedisValue>(&self, at: usize, words: &[&str]) -> T {
        let mut connection = self.connect_to_node(at).await.expect("it runs");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await.expect("the command is right")
    }

    pub(crate) async fn connect_to_node(&self, at: usize) -> Option<MultiplexedConnection> {
        let client = redis::Client::open(("127.0.0.1", self.nodes[at].port)).ok()?;
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(20)))
            .set_response_timeout(Some(Duration::from_secs(20)));
        client.get_multiplexed_async_connection_with_config(&patient).await.ok()
    }

    /// Whether its nodes have channels of shards (7.0).
    pub(crate) async fn supports_sharded_pubsub(&self) -> bool {
        let info: String = self.query(0, &["INFO", "server"]).await;
        !info.contains("redis_version:6.")
    }

    /// SIGKILL, SIGSTOP.
    pub(crate) async fn signal_node(&self, at: usize, name: &str) {
        send_signal(&self.process_id(at).await, name);
    }

    /// The number of a node's process, for [`signal`]: it can't be asked while it stands still.
    pub(crate) async fn process_id(&self, at: usize) -> String {
        let info: String = self.query(at, &["INFO", "server"]).await;
        let found = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        found.expect("its id").trim().to_owned()
    }

    /// The slot of a shard.
    pub(crate) async fn slot_of_shard(&self, shard: u16) -> u16 {
        self.query(0, &["CLUSTER", "KEYSLOT", &format!("{{{shard}}}")]).await
    }

    /// Which node has a slot, by its own word.
    pub(crate) async fn slot_owner(&self, slot: u16) -> usize {
        for at in 0..self.nodes.len() {
            let nodes: String = self.query(at, &["CLUSTER", "NODES"]).await;
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
    pub(crate) async fn begin_slot_migration(&self, slot: u16, from: usize, to: usize) {
        let [giver, taker]: [String; 2] = [self.node_id(from).await, self.node_id(to).await];
        let slot = slot.to_string();
        self.send_command(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &giver]).await;
        self.send_command(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &taker]).await;
    }

    /// Its keys go, some at a time, and then it has arrived.
    pub(crate) async fn finish_slot_migration(&self, slot: u16, from: usize, to: usize) {
        let (taker, slot) = (self.node_id(to).await, slot.to_string());
        let port = self.nodes[to].peer_port().to_string();
        loop {
            let keys: Vec<String> =
                self.query(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "5"]).await;
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.send_command(from, &words).await;
        }
        let others = (0..self.nodes.len()).filter(|at| *at != from && *at != to);
        for at in [to, from].into_iter().chain(others) {
            self.send_command(at, &["CLUSTER", "SETSLOT", &slot, "NODE", &taker]).await;
        }
    }

    async fn node_id(&self, at: usize) -> String {
        self.query(at, &["CLUSTER", "MYID"]).await
    }

    async fn wait_until_node_answers(&self, at: usize) {
        for _ in 0..1000 {
            if self.connect_to_node(at).await.is_some() {
                return;
            }
            // A process tells nobody when it starts to listen.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server on port {} does not answer", self.nodes[at].port);
    }

    async fn wait_until_all_nodes(&self, done: impl Fn(&str) -> bool) {
        for at in 0..self.nodes.len() {
            self.wait_until_node(at, &["CLUSTER", "INFO"], &done).await;
        }
    }

    /// Asks a node until it says so: nodes tell nobody what they have heard from each other.
    pub(crate) async fn wait_until_node(
        &self,
        at: usize,
        words: &[&str],
        done: impl Fn(&str) -> bool,
    ) {
        for _ in 0..3000 {
            let text: String = self.query(at, words).await;
            if done(&text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the cluster does not settle");
    }
}

/// The shared cluster, through a namespace of its own.
pub(super) struct ClusterNamespace {
    cluster: &'static TestCluster,
    namespace: String,
}

impl ClusterNamespace {
    pub(super) async fn new() -> Self {
        let namespace = uuid::Uuid::new_v4().simple().to_string();
        Self { cluster: TestCluster::shared().await, namespace }
    }

    pub(super) async fn supports_sharded_pubsub(&self) -> bool {
        self.cluster.supports_sharded_pubsub().await
    }

    pub(super) async fn connect_store(&self) -> Store {
        let builder = self.cluster.store_builder(&self.namespace);
        // Far more than a call takes: a loaded machine is no outage.
        builder.call_timeout(Duration::from_secs(20)).connect().await.expect("the URL is right")
    }

    /// Nobody is known to live; if it is broken, no script can ask either.
    pub(super) async fn delete_worker_index(&self, broken: bool) {
        let key = format!("lg:1:{}:{{0}}:workers", self.namespace);
        let at = self.cluster.slot_owner(self.cluster.slot_of_shard(0).await).await;
        self.cluster.send_command(at, &["DEL", &key]).await;
        if broken {
            self.cluster.send_command(at, &["RPUSH", &key, "broken"]).await;
        }
    }

    /// A name of this namespace that is about no shard, with whoever has its slot.
    pub(super) async fn set_key_without_shard(&self, name: &str) {
        let name = format!("lg:1:{}:{name}", self.namespace);
        let slot = self.cluster.query(0, &["CLUSTER", "KEYSLOT", &name]).await;
        self.cluster.send_command(self.cluster.slot_owner(slot).await, &["SET", &name, "x"]).await;
    }

    /// A command about a key of a shard, to whoever has it.
    pub(super) async fn shard_command<T: redis::FromRedisValue>(
        &self,
        shard: u16,
        verb: &str,
        kind: &str,
        rest: &[&str],
    ) -> T {
        let owner = self.cluster.slot_owner(self.cluster.slot_of_shard(shard).await).await;
        let name = format!("lg:1:{}:{{{shard}}}:{kind}", self.namespace);
        self.cluster.query(owner, &[&[verb, &name], rest].concat()).await
    }

    /// As that of one server, on each node.
    pub(super) async fn shift_time(&self, ms: i64) {
        self.eval_on_every_node(include_str!("shift_times.lua"), &[&ms.to_string()]).await;
    }

    /// As that of one server, on each node.
    pub(super) async fn delete_all_keys(&self) {
        self.eval_on_every_node(super::server_namespace::DELETE_KEYS_SCRIPT, &[]).await;
    }

    async fn eval_on_every_node(&self, script: &str, rest: &[&str]) {
        let prefix = format!("lg:1:{}:", self.namespace);
        for at in 0..self.cluster.nodes.len() {
            self.cluster.send_command(at, &[&["EVAL", script, "0", &prefix], rest].concat()).await;
        }
    }
}
