//! Slots move with what is in them, while locks and quotas are used.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use super::{
    acquire_command, assert_store_is_clean, charge_command, keys_in_distinct_shards,
    request_load::RequestLoad, retry_while_unavailable,
};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken},
        tests::test_cluster::TestCluster,
    },
};

/// Shards that are used, and moved.
const USED_SHARDS: u16 = 8;

/// How long.
const LOAD_DURATION: Duration = Duration::from_secs(4);

/// Of a request, beyond the time that its slot is on its way: a call that waits for its deadline, a look at the map,
/// and a machine that has other things to do.
const MAX_EXTRA_WAIT: Duration = Duration::from_secs(15);

/// More than is charged in that time, but of a few keys.
const LIMIT: u64 = 50;

struct MigrationLoad {
    store: Store,
    requests: RequestLoad,
}

impl MigrationLoad {
    fn is_running(&self) -> bool {
        self.requests.is_running()
    }

    /// One process that takes a lock and gives it back; `within`: whether anybody is in, and the last fence.
    async fn acquire_in_loop(&self, key: &Key, within: &(AtomicBool, AtomicU64)) -> u64 {
        let mut times = 0;
        while self.is_running() {
            let me = LockToken::new(self.store.node());
            let acquire = async || self.store.backend().acquire(acquire_command(key, &me)).await;
            let AcquireReply::Granted { fence, .. } = self.requests.measure_request(acquire).await
            else {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            };
            assert!(!within.0.swap(true, Ordering::SeqCst), "two hold {key:?}");
            assert!(within.1.swap(fence, Ordering::SeqCst) < fence, "a fence went back");
            tokio::task::yield_now().await;
            within.0.store(false, Ordering::SeqCst);
            let release = async || {
                let (key, me) = (key.clone(), me.clone());
                self.store.backend().release(key, me, LockMode::Exclusive).await
            };
            self.requests.measure_request(release).await;
            times += 1;
        }
        times
    }

    /// How many charges were surely and perhaps made.
    async fn charge_in_loop(&self, key: &Key) -> (u64, u64) {
        let (mut sure, mut perhaps) = (0, 0);
        while self.is_running() {
            let charged = self.store.backend().charge(charge_command(key, LIMIT));
            match self.requests.measure_call(charged).await {
                Ok(charged) => sure += u64::from(charged.admitted),
                Err(error) if error.kind() == ErrorKind::Timeout => perhaps += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (sure, perhaps)
    }
}

/// Moves one slot after the other to the next node until the time is over; how many, and for how long any of them
/// was on its way.
async fn move_slots(cluster: &TestCluster, keys: &[Key], pause: Duration) -> (u32, Duration) {
    let (began, mut moved, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < LOAD_DURATION {
        for key in keys {
            let slot = cluster.slot_of_shard(key.shard()).await;
            let from = cluster.slot_owner(slot).await;
            let to = (from + 1) % 3;
            let left = Instant::now();
            cluster.begin_slot_migration(slot, from, to).await;
            tokio::time::sleep(pause).await;
            cluster.finish_slot_migration(slot, from, to).await;
            longest = longest.max(left.elapsed());
            moved += 1;
        }
    }
    (moved, longest)
}

#[tokio::test]
async fn slots_moved_under_load_keep_locks_and_quotas() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster.store_builder("moves").connect().await.unwrap();
    let load = MigrationLoad { store, requests: RequestLoad::default() };
    let used: Vec<Key> = keys_in_distinct_shards(USED_SHARDS);
    let locks: Vec<(&Key, _)> = used.iter().map(|key| (key, Default::default())).collect();
    let pairs = || locks.iter().flat_map(|lock| [lock, lock]);
    let moving = async {
        let second = || tokio::time::sleep(Duration::from_secs(1));
        load.requests.measure_rate("before", second()).await;
        let pause = Duration::from_millis(20);
        let moved = load.requests.measure_rate("during", move_slots(&cluster, &used, pause)).await;
        load.requests.measure_rate("after", second()).await;
        load.requests.stop();
        moved
    };
    let ((moved, on_its_way), held, charged) = tokio::join!(
        moving,
        join_all(pairs().map(|(key, within)| load.acquire_in_loop(key, within))),
        join_all(used.iter().map(|key| load.charge_in_loop(key))),
    );
    for (key, (sure, perhaps)) in used.iter().zip(charged) {
        let look =
            crate::store::backend::ChargeCommand { repetitions: 0, ..charge_command(key, LIMIT) };
        let looked =
            retry_while_unavailable(async || load.store.backend().charge(look.clone()).await).await;
        let spent = LIMIT - looked.snapshots[0].remaining;
        assert!((sure..=sure + perhaps).contains(&spent), "{sure} + {perhaps}: {spent}");
        assert!(sure <= LIMIT && sure > 0);
    }
    let taken: u64 = held.into_iter().sum();
    let (longest, calls) = (load.requests.longest_request(), load.requests.call_count());
    println!(
        "{moved} slots moved under {calls} calls ({taken} locks); one was on its way for {on_its_way:?}"
    );
    load.requests.print_figures();
    assert!(moved >= u32::from(USED_SHARDS) && taken > 0);
    // Nobody waits for much longer than a slot is on its way.
    assert!(longest < on_its_way + MAX_EXTRA_WAIT, "{longest:?}, and a slot {on_its_way:?}");
    assert_store_is_clean(&load.store).await;
}
