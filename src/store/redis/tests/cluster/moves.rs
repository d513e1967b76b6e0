//! Slots move with what is in them, while locks and quotas are used.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use super::{ask, charge, insist, is_clean, keys, requests::Requests};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken},
        tests::cluster::Cluster,
    },
};

/// Shards that are used, and moved.
const USED: u16 = 8;

/// How long.
const TIME: Duration = Duration::from_secs(4);

/// Of a request, beyond the time that its slot is on its way: a call that waits for its deadline, a look at the map,
/// and a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(15);

/// More than is charged in that time, but of a few keys.
const LIMIT: u64 = 50;

struct Load {
    store: Store,
    requests: Requests,
}

impl Load {
    fn goes_on(&self) -> bool {
        self.requests.goes_on()
    }

    /// One process that takes a lock and gives it back; `within`: whether anybody is in, and the last fence.
    async fn locks(&self, key: &Key, within: &(AtomicBool, AtomicU64)) -> u64 {
        let mut times = 0;
        while self.goes_on() {
            let me = LockToken::new(self.store.node());
            let acquire = async || self.store.backend().acquire(ask(key, &me)).await;
            let AcquireReply::Granted { fence, .. } = self.requests.insist(acquire).await else {
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
            self.requests.insist(release).await;
            times += 1;
        }
        times
    }

    /// How many charges were surely and perhaps made.
    async fn charges(&self, key: &Key) -> (u64, u64) {
        let (mut sure, mut perhaps) = (0, 0);
        while self.goes_on() {
            let charged = self.store.backend().charge(charge(key, LIMIT));
            match self.requests.call(charged).await {
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
async fn moves(cluster: &Cluster, keys: &[Key], pause: Duration) -> (u32, Duration) {
    let (began, mut moved, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < TIME {
        for key in keys {
            let slot = cluster.slot(key.shard()).await;
            let from = cluster.owner(slot).await;
            let to = (from + 1) % 3;
            let left = Instant::now();
            cluster.begin_move(slot, from, to).await;
            tokio::time::sleep(pause).await;
            cluster.end_move(slot, from, to).await;
            longest = longest.max(left.elapsed());
            moved += 1;
        }
    }
    (moved, longest)
}

#[tokio::test]
async fn slots_that_move_lose_nothing_and_mix_nothing_up() {
    let cluster = Cluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster.builder("moves").connect().await.unwrap();
    let load = Load { store, requests: Requests::default() };
    let used: Vec<Key> = keys(USED);
    let locks: Vec<(&Key, _)> = used.iter().map(|key| (key, Default::default())).collect();
    let pairs = || locks.iter().flat_map(|lock| [lock, lock]);
    let moving = async {
        let second = || tokio::time::sleep(Duration::from_secs(1));
        load.requests.rate("before", second()).await;
        let pause = Duration::from_millis(20);
        let moved = load.requests.rate("during", moves(&cluster, &used, pause)).await;
        load.requests.rate("after", second()).await;
        load.requests.stop();
        moved
    };
    let ((moved, on_its_way), held, charged) = tokio::join!(
        moving,
        join_all(pairs().map(|(key, within)| load.locks(key, within))),
        join_all(used.iter().map(|key| load.charges(key))),
    );
    for (key, (sure, perhaps)) in used.iter().zip(charged) {
        let look = crate::store::backend::ChargeCommand { repetitions: 0, ..charge(key, LIMIT) };
        let looked = insist(async || load.store.backend().charge(look.clone()).await).await;
        let spent = LIMIT - looked.snapshots[0].remaining;
        assert!((sure..=sure + perhaps).contains(&spent), "{sure} + {perhaps}: {spent}");
        assert!(sure <= LIMIT && sure > 0);
    }
    let taken: u64 = held.into_iter().sum();
    let (longest, calls) = (load.requests.longest(), load.requests.calls());
    println!(
        "{moved} slots moved under {calls} calls ({taken} locks); one was on its way for {on_its_way:?}"
    );
    load.requests.tell();
    assert!(moved >= u32::from(USED) && taken > 0);
    // Nobody waits for much longer than a slot is on its way.
    assert!(longest < on_its_way + PATIENCE, "{longest:?}, and a slot {on_its_way:?}");
    is_clean(&load.store).await;
}
