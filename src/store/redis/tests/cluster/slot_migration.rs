//! Slots that move while their locks and quotas are in use.

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

/// Number of shards that are used and moved.
const USED_SHARDS: u16 = 8;

/// Duration of the moves under load.
const LOAD_DURATION: Duration = Duration::from_secs(4);

/// Longest wait of a request beyond the migration of its slot: a call up to its deadline, a
/// topology refresh, and a loaded machine.
const MAX_EXTRA_WAIT: Duration = Duration::from_secs(15);

/// Limit of each quota.
const LIMIT: u64 = 50;

struct MigrationLoad {
    store: Store,
    requests: RequestLoad,
}

impl MigrationLoad {
    fn is_running(&self) -> bool {
        self.requests.is_running()
    }

    /// Acquires and releases a lock in a loop, as one process. `state` holds whether it is held,
    /// and its last fence. Returns the number of grants.
    async fn acquire_in_loop(&self, key: &Key, state: &(AtomicBool, AtomicU64)) -> u64 {
        let mut grants = 0;
        while self.is_running() {
            let token = LockToken::new(self.store.node());
            let acquire = async || self.store.backend().acquire(acquire_command(key, &token)).await;
            let AcquireReply::Granted { fence, .. } = self.requests.measure_request(acquire).await
            else {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            };
            assert!(!state.0.swap(true, Ordering::SeqCst), "two hold {key:?}");
            assert!(state.1.swap(fence, Ordering::SeqCst) < fence, "a fence went back");
            tokio::task::yield_now().await;
            state.0.store(false, Ordering::SeqCst);
            let release = async || {
                let (key, token) = (key.clone(), token.clone());
                self.store.backend().release(key, token, LockMode::Exclusive).await
            };
            self.requests.measure_request(release).await;
            grants += 1;
        }
        grants
    }

    /// Charges in a loop. Returns the numbers of charges made, and in doubt.
    async fn charge_in_loop(&self, key: &Key) -> (u64, u64) {
        let (mut made, mut in_doubt) = (0, 0);
        while self.is_running() {
            let charged = self.store.backend().charge(charge_command(key, LIMIT));
            match self.requests.measure_call(charged).await {
                Ok(charged) => made += u64::from(charged.admitted),
                Err(error) if error.kind() == ErrorKind::Timeout => in_doubt += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (made, in_doubt)
    }
}

/// Moves slots to the next node, one after another, for `LOAD_DURATION`. Returns their number and
/// the longest migration.
async fn move_slots(cluster: &TestCluster, keys: &[Key], pause: Duration) -> (u32, Duration) {
    let (started, mut moved, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while started.elapsed() < LOAD_DURATION {
        for key in keys {
            let slot = cluster.slot_of_shard(key.shard()).await;
            let source = cluster.slot_owner(slot).await;
            let target = (source + 1) % 3;
            let moved_at = Instant::now();
            cluster.begin_slot_migration(slot, source, target).await;
            tokio::time::sleep(pause).await;
            cluster.finish_slot_migration(slot, source, target).await;
            longest = longest.max(moved_at.elapsed());
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
    let ((moved, longest_migration), held, charged) = tokio::join!(
        moving,
        join_all(pairs().map(|(key, state)| load.acquire_in_loop(key, state))),
        join_all(used.iter().map(|key| load.charge_in_loop(key))),
    );
    for (key, (made, in_doubt)) in used.iter().zip(charged) {
        let query =
            crate::store::backend::ChargeCommand { repetitions: 0, ..charge_command(key, LIMIT) };
        let outcome =
            retry_while_unavailable(async || load.store.backend().charge(query.clone()).await)
                .await;
        let spent = LIMIT - outcome.snapshots[0].remaining;
        assert!((made..=made + in_doubt).contains(&spent), "{made} + {in_doubt}: {spent}");
        assert!(made <= LIMIT && made > 0);
    }
    let grants: u64 = held.into_iter().sum();
    let (longest, calls) = (load.requests.longest_request(), load.requests.call_count());
    println!(
        "{moved} slots moved under {calls} calls ({grants} locks); one was on its way for {longest_migration:?}"
    );
    load.requests.print_figures();
    assert!(moved >= u32::from(USED_SHARDS) && grants > 0);
    // No request waits much longer than a migration takes.
    assert!(
        longest < longest_migration + MAX_EXTRA_WAIT,
        "{longest:?}, and a slot {longest_migration:?}"
    );
    assert_store_is_clean(&load.store).await;
}
