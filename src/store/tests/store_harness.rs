//! A store and its clock, and shorthands for the steps.

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

/// A time that no case lets pass by chance, and one that is over soon.
pub(super) const LONG_TIME: Duration = Duration::from_secs(600);
pub(super) const SHORT_TIME: Duration = Duration::from_secs(2);

pub(super) struct StoreHarness {
    store: Store,
    memory: Option<Arc<MemoryBackend>>,
    clock: HarnessClock,
    /// Milliseconds by which a server's data were moved into the past.
    shifted_ms: AtomicI64,
}

fn to_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// What is due in a shard, and when to look again.
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
        // The models begin then, too.
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

    /// By connections of a pool of the application's.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn pool() -> Self {
        Self::from_server(super::server_namespace::ServerNamespace::through_pool().await).await
    }

    /// Where sentinels say.
    #[cfg(feature = "redis")]
    pub(super) async fn sentinels() -> Self {
        Self::from_server(super::server_namespace::ServerNamespace::through_sentinels().await).await
    }

    #[cfg(feature = "redis")]
    async fn from_server(server: super::server_namespace::ServerNamespace) -> Self {
        let store = server.connect_store().await;
        let time = HarnessClock::ShiftedServer(server);
        Self { store, memory: None, clock: time, shifted_ms: AtomicI64::new(0) }
    }

    /// Three nodes that share the shards.
    #[cfg(feature = "redis")]
    pub(super) async fn cluster() -> Self {
        let space = super::test_cluster::ClusterNamespace::new().await;
        let store = space.connect_store().await;
        let time = HarnessClock::ShiftedCluster(space);
        Self { store, memory: None, clock: time, shifted_ms: AtomicI64::new(0) }
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
            HarnessClock::ShiftedCluster(space) => space,
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
            HarnessClock::ShiftedCluster(space) => {
                space.shift_time(to_millis(time)).await;
                self.shifted_ms.fetch_add(to_millis(time), Ordering::SeqCst);
            }
        }
    }

    /// The store's clock is put back.
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
            HarnessClock::ShiftedCluster(space) => {
                space.shift_time(-to_millis(time)).await;
                self.shifted_ms.fetch_sub(to_millis(time), Ordering::SeqCst);
            }
        }
    }

    /// Removes all it has stored. Time passes on a server by naming all keys of a database, whoever they belong to.
    #[cfg(feature = "redis")]
    pub(super) async fn delete_all_keys(&self) {
        match &self.clock {
            HarnessClock::Manual(_) => {}
            HarnessClock::ShiftedServer(server) => server.delete_all_keys().await,
            HarnessClock::ShiftedCluster(space) => space.delete_all_keys().await,
        }
    }

    /// Lets what was given `time` end: a little more than that passes.
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
    pub(super) async fn subscribe_node(&self, node: &NodeId, hints: &Arc<WakeupListeners>) {
        if let Some(listens) = self.backend().subscribe(node.clone(), hints) {
            drop(crate::store::spawn(listens));
        }
    }

    pub(super) fn memory_backend(&self) -> &MemoryBackend {
        self.memory.as_ref().expect("a case for memory alone")
    }

    /// Puts so many jobs among a shard's dead ones, of which nothing else is kept. They are forgotten after all others.
    pub(super) async fn fill_dead_index(&self, shard: u16, number: u64) {
        const FIRST_EXPIRY_US: u64 = 9_000_000_000_000_000;
        if let Some(memory) = &self.memory {
            return memory.fill_dead_index(shard, FIRST_EXPIRY_US..FIRST_EXPIRY_US + number);
        }
        let rows = Vec::from_iter(
            (0..number).map(|n| (FIRST_EXPIRY_US.to_string(), format!("{shard:02x}{n:032x}"))),
        );
        for rows in rows.chunks(100) {
            let rows = Vec::from_iter(rows.iter().flat_map(|(at, id)| [at.as_str(), id]));
            let added: i64 = match &self.clock {
                HarnessClock::Manual(_) => panic!("that is the embedded store"),
                #[cfg(feature = "redis")]
                HarnessClock::ShiftedServer(server) => {
                    server.key_command("ZADD", &format!("{{{shard}}}:dead"), &rows).await
                }
                #[cfg(feature = "redis")]
                HarnessClock::ShiftedCluster(space) => {
                    space.shard_command(shard, "ZADD", "dead", &rows).await
                }
            };
            assert_eq!(added, 100);
        }
    }

    /// How many things the embedded store keeps.
    pub(super) fn stored_value_count(&self) -> usize {
        self.memory_backend().stored_value_count()
    }

    /// Whether whoever sends a message learns how many hear it.
    pub(super) async fn reports_receiver_count(&self) -> bool {
        #[cfg(feature = "redis")]
        if let HarnessClock::ShiftedCluster(space) = &self.clock {
            return space.supports_sharded_pubsub().await;
        }
        true
    }

    /// Whether listening begins with a Resync.
    pub(super) fn resyncs_on_subscribe(&self) -> bool {
        !matches!(self.clock, HarnessClock::Manual(_))
    }
}
