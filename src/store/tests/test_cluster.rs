//! Redis clusters of the tests.

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

/// Shared by all tests of this process, because a cluster takes seconds to form. A static is never
/// dropped, so the servers end by themselves when this process has ended.
static SHARED_CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();

/// Masters first, then one replica of each, if there are any.
pub(crate) struct TestCluster {
    nodes: Vec<NodeProcess>,
}

impl TestCluster {
    /// Returns the shared cluster of three masters. No test may disturb it.
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

    /// Starts a cluster. `timeout` is the node timeout after which a silent node counts as failed.
    pub(crate) async fn start(masters: usize, replicas: bool, timeout: Duration) -> Self {
        Self::start_with_args(masters, replicas, timeout, &[]).await
    }

    /// Starts a cluster with more arguments on each node's command line. With any, each node also
    /// gets a TLS port.
    pub(crate) async fn start_with_args(
        masters: usize,
        replicas: bool,
        timeout: Duration,
        args: &[String],
    ) -> Self {
        let node_count = if replicas { 2 * masters } else { masters };
        let nodes = (0..node_count).map(|_| NodeProcess::spawn(timeout, args)).collect();
        let cluster = Self { nodes };
        for node in 0..node_count {
            cluster.wait_until_node_answers(node).await;
        }
        for node in 0..masters {
            let [from, to] = [node, node + 1].map(|n| n * SLOT_COUNT / masters);
            // One by one, because servers before 7.0 know no ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let mut args = vec!["CLUSTER", "ADDSLOTS"];
            args.extend(slots.iter().map(String::as_str));
            cluster.send_command(node, &args).await;
            cluster
                .send_command(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()])
                .await;
        }
        for node in 1..node_count {
            let port = cluster.nodes[node].peer_port().to_string();
            cluster.send_command(0, &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
        }
        let known = format!("cluster_known_nodes:{node_count}");
        cluster.wait_until_all_nodes(|info| info.contains(&known)).await;
        for node in masters..node_count {
            let id: String = cluster.query(node - masters, &["CLUSTER", "MYID"]).await;
            cluster.send_command(node, &["CLUSTER", "REPLICATE", &id]).await;
        }
        cluster.wait_until_all_nodes(|info| info.contains("cluster_state:ok")).await;
        for node in masters..node_count {
            cluster
                .wait_until_node(node, &["INFO", "replication"], |info| {
                    info.contains("link_status:up")
                })
                .await;
        }
        cluster
    }

    /// Returns the URL of one node; clients find the others.
    pub(crate) fn url(&self, namespace: &str) -> String {
        format!("redis+cluster://127.0.0.1:{}/?ns={namespace}", self.nodes[0].port)
    }

    /// Like [`TestCluster::url`], with TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn tls_url(&self, namespace: &str) -> String {
        format!("rediss+cluster://127.0.0.1:{}/?ns={namespace}", self.nodes[0].peer_port())
    }

    pub(crate) fn store_builder(&self, namespace: &str) -> StoreBuilder {
        Store::builder(&self.url(namespace))
    }

    /// Like `query`, without a result.
    pub(crate) async fn send_command(&self, node: usize, args: &[&str]) {
        let _: Value = self.query(node, args).await;
    }

    pub(crate) async fn query<T: redis::FromRedisValue>(&self, node: usize, args: &[&str]) -> T {
        let mut connection = self.connect_to_node(node).await.expect("it runs");
        let mut command = redis::cmd(args[0]);
        command.arg(&args[1..]);
        command.query_async(&mut connection).await.expect("the command is right")
    }

    pub(crate) async fn connect_to_node(&self, node: usize) -> Option<MultiplexedConnection> {
        let client = redis::Client::open(("127.0.0.1", self.nodes[node].port)).ok()?;
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(20)))
            .set_response_timeout(Some(Duration::from_secs(20)));
        client.get_multiplexed_async_connection_with_config(&config).await.ok()
    }

    /// Returns true if the nodes support sharded pub/sub (7.0).
    pub(crate) async fn supports_sharded_pubsub(&self) -> bool {
        let info: String = self.query(0, &["INFO", "server"]).await;
        !info.contains("redis_version:6.")
    }

    /// Sends a signal to a node's process, such as SIGKILL or SIGSTOP.
    pub(crate) async fn signal_node(&self, node: usize, name: &str) {
        send_signal(&self.process_id(node).await, name);
    }

    /// Returns the process id of a node, for [`send_signal`]. A stopped node cannot be queried.
    pub(crate) async fn process_id(&self, node: usize) -> String {
        let info: String = self.query(node, &["INFO", "server"]).await;
        let id = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        id.expect("its id").trim().to_owned()
    }

    /// Returns the slot of a shard.
    pub(crate) async fn slot_of_shard(&self, shard: u16) -> u16 {
        self.query(0, &["CLUSTER", "KEYSLOT", &format!("{{{shard}}}")]).await
    }

    /// Returns the node that reports itself as the owner of a slot.
    pub(crate) async fn slot_owner(&self, slot: u16) -> usize {
        for node in 0..self.nodes.len() {
            let nodes: String = self.query(node, &["CLUSTER", "NODES"]).await;
            let entry = nodes.lines().find(|line| line.contains("myself")).expect("itself");
            let contains_slot = |range: &str| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let [first, last] = [first, last].map(|n| n.parse::<u16>().unwrap_or(u16::MAX));
                (first..=last).contains(&slot)
            };
            if entry.contains("master") && entry.split(' ').skip(8).any(contains_slot) {
                return node;
            }
        }
        panic!("no cluster node owns slot {slot}")
    }

    /// Begins the migration of a slot.
    pub(crate) async fn begin_slot_migration(&self, slot: u16, from: usize, to: usize) {
        let [source_id, target_id]: [String; 2] =
            [self.node_id(from).await, self.node_id(to).await];
        let slot = slot.to_string();
        self.send_command(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
        self.send_command(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
    }

    /// Moves the keys of a slot in batches, and ends its migration.
    pub(crate) async fn finish_slot_migration(&self, slot: u16, from: usize, to: usize) {
        let (target_id, slot) = (self.node_id(to).await, slot.to_string());
        let port = self.nodes[to].peer_port().to_string();
        loop {
            let keys: Vec<String> =
                self.query(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "5"]).await;
            if keys.is_empty() {
                break;
            }
            let mut args = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            args.extend(keys.iter().map(String::as_str));
            self.send_command(from, &args).await;
        }
        let others = (0..self.nodes.len()).filter(|node| *node != from && *node != to);
        for node in [to, from].into_iter().chain(others) {
            self.send_command(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
        }
    }

    async fn node_id(&self, node: usize) -> String {
        self.query(node, &["CLUSTER", "MYID"]).await
    }

    async fn wait_until_node_answers(&self, node: usize) {
        for _ in 0..1000 {
            if self.connect_to_node(node).await.is_some() {
                return;
            }
            // A process does not report that it listens.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server on port {} does not answer", self.nodes[node].port);
    }

    async fn wait_until_all_nodes(&self, is_done: impl Fn(&str) -> bool) {
        for node in 0..self.nodes.len() {
            self.wait_until_node(node, &["CLUSTER", "INFO"], &is_done).await;
        }
    }

    /// Polls a node until its reply satisfies `is_done`. Nodes do not announce what they learn from
    /// each other.
    pub(crate) async fn wait_until_node(
        &self,
        node: usize,
        args: &[&str],
        is_done: impl Fn(&str) -> bool,
    ) {
        for _ in 0..3000 {
            let text: String = self.query(node, args).await;
            if is_done(&text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the cluster does not settle");
    }
}

/// A namespace of its own on the shared cluster.
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
        // Far more than a call takes, so that a loaded machine is not taken for an outage.
        builder.call_timeout(Duration::from_secs(20)).connect().await.expect("the URL is right")
    }

    /// Deletes the list of live workers. With `is_broken`, scripts that read it fail as well.
    pub(super) async fn delete_worker_index(&self, is_broken: bool) {
        let key = format!("lg:1:{}:{{0}}:workers", self.namespace);
        let node = self.cluster.slot_owner(self.cluster.slot_of_shard(0).await).await;
        self.cluster.send_command(node, &["DEL", &key]).await;
        if is_broken {
            self.cluster.send_command(node, &["RPUSH", &key, "broken"]).await;
        }
    }

    /// Sets a key of this namespace that belongs to no shard, on the owner of its slot.
    pub(super) async fn set_key_without_shard(&self, name: &str) {
        let name = format!("lg:1:{}:{name}", self.namespace);
        let slot = self.cluster.query(0, &["CLUSTER", "KEYSLOT", &name]).await;
        self.cluster.send_command(self.cluster.slot_owner(slot).await, &["SET", &name, "x"]).await;
    }

    /// Sends a command about a key of a shard to the owner of its slot.
    pub(super) async fn shard_command<T: redis::FromRedisValue>(
        &self,
        shard: u16,
        verb: &str,
        kind: &str,
        args: &[&str],
    ) -> T {
        let owner = self.cluster.slot_owner(self.cluster.slot_of_shard(shard).await).await;
        let name = format!("lg:1:{}:{{{shard}}}:{kind}", self.namespace);
        self.cluster.query(owner, &[&[verb, &name], args].concat()).await
    }

    /// Shifts time on each node, as `ServerNamespace` does on one server.
    pub(super) async fn shift_time(&self, ms: i64) {
        self.eval_on_every_node(include_str!("shift_times.lua"), &[&ms.to_string()]).await;
    }

    /// Removes all keys of the namespace on each node.
    pub(super) async fn delete_all_keys(&self) {
        self.eval_on_every_node(super::server_namespace::DELETE_KEYS_SCRIPT, &[]).await;
    }

    async fn eval_on_every_node(&self, script: &str, args: &[&str]) {
        let prefix = format!("lg:1:{}:", self.namespace);
        for node in 0..self.cluster.nodes.len() {
            self.cluster
                .send_command(node, &[&["EVAL", script, "0", &prefix], args].concat())
                .await;
        }
    }
}
