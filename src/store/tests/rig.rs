//! A store and its clock, and shorthands for the steps.

mod calls;
mod steps;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

pub(super) use self::calls::{
    again, ask, deferred, done, fixed, key, neighbours, next_run, settled, stranger, together,
    visit, wait,
};
use crate::{
    clock::Clock,
    key::Key,
    store::{
        Store,
        backend::{Backend, NodeId, OFFER_TIMEOUT},
        memory::MemoryBackend,
        wakeups::Wakeups,
    },
};

/// A time that no case lets pass by chance, and one that is over soon.
pub(super) const LONG: Duration = Duration::from_secs(600);
pub(super) const SHORT: Duration = Duration::from_secs(2);

pub(super) struct Rig {
    store: Store,
    memory: Option<Arc<MemoryBackend>>,
    time: Time,
    /// Milliseconds by which a server's data were moved into the past.
    travelled: AtomicI64,
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// What is due in a shard, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) names: Vec<Key>,
    pub(super) next: Option<Duration>,
}

enum Time {
    Manual(Clock),
    #[cfg(feature = "redis")]
    Travel(super::server::Server),
    #[cfg(feature = "redis")]
    TravelApart(super::cluster::Space),
}

impl Rig {
    pub(super) fn memory() -> Self {
        // The models begin then, too.
        let clock = Clock::manual_at(Duration::from_secs(1_700_000_000));
        let memory = Arc::new(MemoryBackend::new(clock.clone()));
        Self {
            store: Store::with_backend(Arc::clone(&memory) as Arc<dyn Backend>),
            memory: Some(memory),
            time: Time::Manual(clock),
            travelled: AtomicI64::new(0),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) async fn redis() -> Self {
        Self::to(super::server::Server::shared().await).await
    }

    /// By connections of a pool of the application's.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn pool() -> Self {
        Self::to(super::server::Server::behind_a_pool().await).await
    }

    /// Where sentinels say.
    #[cfg(feature = "redis")]
    pub(super) async fn sentinels() -> Self {
        Self::to(super::server::Server::behind_sentinels().await).await
    }

    #[cfg(feature = "redis")]
    async fn to(server: super::server::Server) -> Self {
        let store = server.store().await;
        let time = Time::Travel(server);
        Self { store, memory: None, time, travelled: AtomicI64::new(0) }
    }

    /// Three nodes that share the shards.
    #[cfg(feature = "redis")]
    pub(super) async fn cluster() -> Self {
        let space = super::cluster::Space::new().await;
        let store = space.store().await;
        let time = Time::TravelApart(space);
        Self { store, memory: None, time, travelled: AtomicI64::new(0) }
    }

    #[cfg(feature = "redis")]
    pub(super) fn server(&self) -> &super::server::Server {
        match &self.time {
            Time::Travel(server) => server,
            Time::Manual(_) | Time::TravelApart(_) => panic!("a case for Redis alone"),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) fn space(&self) -> &super::cluster::Space {
        match &self.time {
            Time::TravelApart(space) => space,
            Time::Manual(_) | Time::Travel(_) => panic!("a case for a cluster alone"),
        }
    }

    pub(super) async fn advance(&self, time: Duration) {
        match &self.time {
            Time::Manual(clock) => clock.advance(time),
            #[cfg(feature = "redis")]
            Time::Travel(server) => {
                server.shift(ms(time)).await;
                self.travelled.fetch_add(ms(time), Ordering::SeqCst);
            }
            #[cfg(feature = "redis")]
            Time::TravelApart(space) => {
                space.shift(ms(time)).await;
                self.travelled.fetch_add(ms(time), Ordering::SeqCst);
            }
        }
    }

    /// The store's clock is put back.
    pub(super) async fn put_back(&self, time: Duration) {
        match &self.time {
            Time::Manual(clock) => {
                self.embedded().sweep_counters();
                clock.rewind(time);
            }
            #[cfg(feature = "redis")]
            Time::Travel(server) => {
                server.shift(-ms(time)).await;
                self.travelled.fetch_sub(ms(time), Ordering::SeqCst);
            }
            #[cfg(feature = "redis")]
            Time::TravelApart(space) => {
                space.shift(-ms(time)).await;
                self.travelled.fetch_sub(ms(time), Ordering::SeqCst);
            }
        }
    }

    /// Removes all it has stored. Time passes on a server by naming all keys of a database, whoever they belong to.
    #[cfg(feature = "redis")]
    pub(super) async fn clear(&self) {
        match &self.time {
            Time::Manual(_) => {}
            Time::Travel(server) => server.clear().await,
            Time::TravelApart(space) => space.clear().await,
        }
    }

    /// Lets what was given `time` end: a little more than that passes.
    pub(super) async fn pass(&self, time: Duration) {
        self.advance(time + Duration::from_millis(10)).await;
    }

    /// Lets an offer lapse.
    pub(super) async fn miss_the_window(&self) {
        self.pass(OFFER_TIMEOUT).await;
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        self.store.backend()
    }

    #[expect(clippy::unused_async, reason = "a store may need its runtime to listen")]
    pub(super) async fn listen(&self, node: &NodeId, hints: &Arc<Wakeups>) {
        if let Some(listens) = self.backend().subscribe(node.clone(), hints) {
            drop(crate::store::spawn(listens));
        }
    }

    pub(super) fn embedded(&self) -> &MemoryBackend {
        self.memory.as_ref().expect("a case for memory alone")
    }

    /// Puts so many jobs among a shard's dead ones, of which nothing else is kept. They are forgotten after all others.
    pub(super) async fn fill_graves(&self, shard: u16, number: u64) {
        const FAR: u64 = 9_000_000_000_000_000;
        if let Some(memory) = &self.memory {
            return memory.fill_dead_index(shard, FAR..FAR + number);
        }
        let rows =
            Vec::from_iter((0..number).map(|n| (FAR.to_string(), format!("{shard:02x}{n:032x}"))));
        for rows in rows.chunks(100) {
            let rows = Vec::from_iter(rows.iter().flat_map(|(at, id)| [at.as_str(), id]));
            let added: i64 = match &self.time {
                Time::Manual(_) => panic!("that is the embedded store"),
                #[cfg(feature = "redis")]
                Time::Travel(server) => {
                    server.raw("ZADD", &format!("{{{shard}}}:dead"), &rows).await
                }
                #[cfg(feature = "redis")]
                Time::TravelApart(space) => space.raw(shard, "ZADD", "dead", &rows).await,
            };
            assert_eq!(added, 100);
        }
    }

    /// How many things the embedded store keeps.
    pub(super) fn stored(&self) -> usize {
        self.embedded().stored_value_count()
    }

    /// Whether whoever sends a message learns how many hear it.
    pub(super) async fn knows_who_listens(&self) -> bool {
        #[cfg(feature = "redis")]
        if let Time::TravelApart(space) = &self.time {
            return space.tells_shards().await;
        }
        true
    }

    /// Whether listening begins with a Resync.
    pub(super) fn resyncs(&self) -> bool {
        !matches!(self.time, Time::Manual(_))
    }
}
