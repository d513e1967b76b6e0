//! `StoreHarness`: a store with a clock that tests control, and its operations.

mod command_builders;
mod operations;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

pub(super) use self::command_builders::{
    claim_command, done_settlement, enqueue_command, fixed_window_item, grouped_charge,
    keys_of_one_shard, new_token, next_claim, retryable_enqueue_command, settle_command, test_key,
    try_acquire_command, wait_command,
};
use crate::{
    clock::Clock,
    key::Key,
    store::{
        Store,
        backend::{Backend, NodeId, OFFER_TIMEOUT},
        memory::MemoryBackend,
        wakeup_listeners::WakeupListeners,
    },
};

/// A time that no case exceeds by chance, and one that passes soon.
pub(super) const LONG_TIME: Duration = Duration::from_secs(600);
pub(super) const SHORT_TIME: Duration = Duration::from_secs(2);

pub(super) struct StoreHarness {
    store: Store,
    memory: Option<Arc<MemoryBackend>>,
    clock: HarnessClock,
    /// Time by which a server's data were moved into the past, in ms.
    shifted_ms: AtomicI64,
}

fn to_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// Due locks of a shard, and the time until the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DuePoll {
    pub(super) locks: Vec<Key>,
    pub(super) next_due_in: Option<Duration>,
}

enum HarnessClock {
    Manual(Clock),
    #[cfg(feature = "redis")]
    ShiftedServer(super::server_namespace::ServerNamespace),
    #[cfg(feature = "redis")]
    ShiftedCluster(super::test_cluster::ClusterNamespace),
}

impl StoreHarness {
    pub(super) fn memory() -> Self {
        // Start time of the models as well.
        let clock = Clock::manual_at(Duration::from_secs(1_700_000_000));
        let memory = Arc::new(MemoryBackend::new(clock.clone()));
        Self {
            store: Store::with_backend(Arc::clone(&memory) as Arc<dyn Backend>),
            memory: Some(memory),
            clock: HarnessClock::Manual(clock),
            shifted_ms: AtomicI64::new(0),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) async fn redis() -> Self {
        Self::from_server(super::server_namespace::ServerNamespace::on_shared_server().await).await
    }

    /// Connects through a connection pool of the application.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn pool() -> Self {
        Self::from_server(super::server_namespace::ServerNamespace::through_pool().await).await
    }

    /// Connects through sentinels.
    #[cfg(feature = "redis")]
    pub(super) async fn sentinels() -> Self {
        Self::from_server(super::server_namespace::ServerNamespace::through_sentinels().await).await
    }

    #[cfg(feature = "redis")]
    async fn from_server(server: super::server_namespace::ServerNamespace) -> Self {
        let store = server.connect_store().await;
        let clock = HarnessClock::ShiftedServer(server);
        Self { store, memory: None, clock, shifted_ms: AtomicI64::new(0) }
    }

    /// Connects to a cluster of three nodes.
    #[cfg(feature = "redis")]
    pub(super) async fn cluster() -> Self {
        let namespace = super::test_cluster::ClusterNamespace::new().await;
        let store = namespace.connect_store().await;
        let clock = HarnessClock::ShiftedCluster(namespace);
        Self { store, memory: None, clock, shifted_ms: AtomicI64::new(0) }
    }

    #[cfg(feature = "redis")]
    pub(super) fn server(&self) -> &super::server_namespace::ServerNamespace {
        match &self.clock {
            HarnessClock::ShiftedServer(server) => server,
            HarnessClock::Manual(_) | HarnessClock::ShiftedCluster(_) => {
                panic!("a case for Redis alone")
            }
        }
    }

    #[cfg(feature = "redis")]
    pub(super) fn cluster_namespace(&self) -> &super::test_cluster::ClusterNamespace {
        match &self.clock {
            HarnessClock::ShiftedCluster(namespace) => namespace,
            HarnessClock::Manual(_) | HarnessClock::ShiftedServer(_) => {
                panic!("a case for a cluster alone")
            }
        }
    }

    pub(super) async fn advance(&self, time: Duration) {
        match &self.clock {
            HarnessClock::Manual(clock) => clock.advance(time),
            #[cfg(feature = "redis")]
            HarnessClock::ShiftedServer(server) => {
                server.shift_time(to_millis(time)).await;
                self.shifted_ms.fetch_add(to_millis(time), Ordering::SeqCst);
            }
            #[cfg(feature = "redis")]
            HarnessClock::ShiftedCluster(namespace) => {
                namespace.shift_time(to_millis(time)).await;
                self.shifted_ms.fetch_add(to_millis(time), Ordering::SeqCst);
            }
        }
    }

    /// Puts the store's clock back.
    pub(super) async fn rewind_clock(&self, time: Duration) {
        match &self.clock {
            HarnessClock::Manual(clock) => {
                self.memory_backend().sweep_counters();
                clock.rewind(time);
            }
            #[cfg(feature = "redis")]
            HarnessClock::ShiftedServer(server) => {
                server.shift_time(-to_millis(time)).await;
                self.shifted_ms.fetch_sub(to_millis(time), Ordering::SeqCst);
            }
            #[cfg(feature = "redis")]
            HarnessClock::ShiftedCluster(namespace) => {
                namespace.shift_time(-to_millis(time)).await;
                self.shifted_ms.fetch_sub(to_millis(time), Ordering::SeqCst);
            }
        }
    }

    /// Removes all stored data. Time is advanced by listing all keys of a database, including those
    /// of other namespaces.
    #[cfg(feature = "redis")]
    pub(super) async fn delete_all_keys(&self) {
        match &self.clock {
            HarnessClock::Manual(_) => {}
            HarnessClock::ShiftedServer(server) => server.delete_all_keys().await,
            HarnessClock::ShiftedCluster(namespace) => namespace.delete_all_keys().await,
        }
    }

    /// Advances time by a little more than `time`, so that everything with this lifetime ends.
    pub(super) async fn advance_past(&self, time: Duration) {
        self.advance(time + Duration::from_millis(10)).await;
    }

    /// Lets an offer lapse.
    pub(super) async fn let_offer_expire(&self) {
        self.advance_past(OFFER_TIMEOUT).await;
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        self.store.backend()
    }

    #[expect(clippy::unused_async, reason = "a store may need its runtime to listen")]
    pub(super) async fn subscribe_node(&self, node: &NodeId, listeners: &Arc<WakeupListeners>) {
        if let Some(subscription) = self.backend().subscribe(node.clone(), listeners) {
            drop(crate::store::spawn(subscription));
        }
    }

    pub(super) fn memory_backend(&self) -> &MemoryBackend {
        self.memory.as_ref().expect("a case for memory alone")
    }

    /// Adds entries without records to a shard's index of dead letters. They expire after all
    /// others.
    pub(super) async fn fill_dead_index(&self, shard: u16, count: u64) {
        const FIRST_EXPIRY_US: u64 = 9_000_000_000_000_000;
        if let Some(memory) = &self.memory {
            return memory.fill_dead_index(shard, FIRST_EXPIRY_US..FIRST_EXPIRY_US + count);
        }
        let rows = Vec::from_iter(
            (0..count).map(|n| (FIRST_EXPIRY_US.to_string(), format!("{shard:02x}{n:032x}"))),
        );
        for rows in rows.chunks(100) {
            let rows = Vec::from_iter(rows.iter().flat_map(|(expiry, id)| [expiry.as_str(), id]));
            let added: i64 = match &self.clock {
                HarnessClock::Manual(_) => panic!("that is the embedded store"),
                #[cfg(feature = "redis")]
                HarnessClock::ShiftedServer(server) => {
                    server.key_command("ZADD", &format!("{{{shard}}}:dead"), &rows).await
                }
                #[cfg(feature = "redis")]
                HarnessClock::ShiftedCluster(namespace) => {
                    namespace.shard_command(shard, "ZADD", "dead", &rows).await
                }
            };
            assert_eq!(added, 100);
        }
    }

    /// Returns the number of values in the embedded store.
    pub(super) fn stored_value_count(&self) -> usize {
        self.memory_backend().stored_value_count()
    }

    /// Returns true if the sender of a message learns the number of receivers.
    pub(super) async fn reports_receiver_count(&self) -> bool {
        #[cfg(feature = "redis")]
        if let HarnessClock::ShiftedCluster(namespace) = &self.clock {
            return namespace.supports_sharded_pubsub().await;
        }
        true
    }

    /// Returns true if a subscription begins with a resync.
    pub(super) fn resyncs_on_subscribe(&self) -> bool {
        !matches!(self.clock, HarnessClock::Manual(_))
    }
}
