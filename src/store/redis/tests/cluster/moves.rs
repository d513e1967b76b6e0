//! Slots move with what is in them, while locks, quotas and deferred requests are used.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{LEASE, ask, charge, deferred, insist, is_clean, keys, requests::Requests};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{
            Acquired, Claim, Claimed, Enqueued, JobId, JobState, Mode, Settle, SettledRun, Token,
            Verdict,
        },
        tests::cluster::Cluster,
    },
};

/// Shards that are used, and moved.
const USED: u16 = 8;

/// How long.
const TIME: Duration = Duration::from_secs(4);

/// How long results are kept: past the end of the test, however slow the machine is.
const KEPT: Duration = Duration::from_secs(3600);

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
            let me = Token::new(self.store.node());
            let acquire = async || self.store.backend().acquire(ask(key, &me)).await;
            let Acquired::Held { fence, .. } = self.requests.insist(acquire).await else {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            };
            assert!(!within.0.swap(true, Ordering::SeqCst), "two hold {key:?}");
            assert!(within.1.swap(fence, Ordering::SeqCst) < fence, "a fence went back");
            tokio::task::yield_now().await;
            within.0.store(false, Ordering::SeqCst);
            let release = async || {
                let (key, me) = (key.clone(), me.clone());
                self.store.backend().release(key, me, Mode::Exclusive).await
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

    /// Requests are accepted in this order.
    async fn accepts(&self, key: &Key) -> Vec<JobId> {
        let mut accepted = Vec::new();
        while self.goes_on() {
            let call = deferred(key);
            let enqueue = async || self.store.backend().enqueue(call.clone()).await;
            let stored = self.requests.insist(enqueue).await;
            assert!(matches!(stored, Enqueued::Stored { .. } | Enqueued::Known(_)), "{stored:?}");
            accepted.push(call.id);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        accepted
    }

    /// Runs what is first until nothing is left, and tells in which order.
    async fn runs(&self, key: &Key) -> Vec<JobId> {
        let mut ran = Vec::new();
        loop {
            let backend = self.store.backend();
            let last = !self.goes_on();
            let heads = insist(async || backend.heads(vec![key.clone()]).await).await;
            let Some(id) = heads.into_iter().next().flatten() else {
                if last {
                    return ran;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let me = Token::new(self.store.node());
            let call = Claim { key: key.clone(), id, me, lease: LEASE, retention: KEPT };
            let claim = async || backend.claim(call.clone()).await;
            let claimed = self.requests.insist(claim).await;
            let Claimed::Claimed(run) = claimed else { panic!("{claimed:?}") };
            ran.push(run.id.clone());
            let verdict = Verdict::Done {
                response: Bytes::from_static(b"answer"),
                status: 200,
                retention: KEPT,
            };
            let Claim { key, me, .. } = call;
            let call = Settle { key, id: run.id, me, verdict, next: None };
            let settle = async || backend.settle(call.clone()).await;
            let settled = self.requests.insist(settle).await;
            assert_eq!(settled, SettledRun::Stands(None));
        }
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
    // Locks and lines are of different names in the same shards.
    let lines: Vec<Key> = keys(USED);
    let locks: Vec<(Key, _)> = lines.iter().map(|key| (another(key), Default::default())).collect();
    let pairs = || locks.iter().flat_map(|lock| [lock, lock]);
    let moving = async {
        let second = || tokio::time::sleep(Duration::from_secs(1));
        load.requests.rate("before", second()).await;
        let pause = Duration::from_millis(20);
        let moved = load.requests.rate("during", moves(&cluster, &lines, pause)).await;
        load.requests.rate("after", second()).await;
        load.requests.stop();
        moved
    };
    let in_line = async |key| tokio::join!(load.accepts(key), load.runs(key));
    let ((moved, on_its_way), held, lined, charged) = tokio::join!(
        moving,
        join_all(pairs().map(|(key, within)| load.locks(key, within))),
        join_all(lines.iter().map(in_line)),
        join_all(lines.iter().map(|key| load.charges(key))),
    );
    let mut jobs = 0;
    for (accepted, ran) in lined {
        assert_eq!(ran, accepted, "each once, and in order");
        jobs += ran.len();
        for id in ran {
            let view = insist(async || load.store.backend().job(id.clone()).await).await;
            assert_eq!(view.expect("it is kept").state, JobState::Done);
        }
    }
    for (key, (sure, perhaps)) in lines.iter().zip(charged) {
        let look = crate::store::backend::Charge { times: 0, ..charge(key, LIMIT) };
        let looked = insist(async || load.store.backend().charge(look.clone()).await).await;
        let spent = LIMIT - looked.states[0].remaining;
        assert!((sure..=sure + perhaps).contains(&spent), "{sure} + {perhaps}: {spent}");
        assert!(sure <= LIMIT && sure > 0);
    }
    let taken: u64 = held.into_iter().sum();
    let (longest, calls) = (load.requests.longest(), load.requests.calls());
    println!(
        "{moved} slots moved under {calls} calls ({taken} locks, {jobs} jobs); one was on its way for {on_its_way:?}"
    );
    load.requests.tell();
    assert!(moved >= u32::from(USED) && taken > 0 && jobs > 0);
    // Nobody waits for much longer than a slot is on its way.
    assert!(longest < on_its_way + PATIENCE, "{longest:?}, and a slot {on_its_way:?}");
    is_clean(&load.store).await;
}

/// Another name in the shard of this one.
fn another(key: &Key) -> Key {
    let mut names = (0..).map(|n: u32| Key::custom(&format!("lock-{n}")));
    names.find(|other| other.shard() == key.shard()).expect("there are enough")
}
