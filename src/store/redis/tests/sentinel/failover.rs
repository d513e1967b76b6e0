//! Failovers under load: what was promised with replicas is still there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{
    super::{SECOND, cluster::insist},
    rig::Sentinels,
};
use crate::{
    key::Key,
    store::{
        Store,
        backend::{Caps, Enqueue, Enqueued, JobId, JobPolicy},
    },
};

/// What those who ask have seen.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// Jobs that would have been answered with 202.
    accepted: Mutex<Vec<JobId>>,
    /// Fences in the order of their grants, of a lock whose holders note it while they have it.
    fences: Mutex<Vec<u64>>,
    inside: AtomicBool,
    overlaps: AtomicU64,
    /// Longest time in which nobody had a success.
    gap: Mutex<(Option<Instant>, Duration)>,
}

impl Seen {
    fn success(&self) {
        let mut gap = self.gap.lock();
        let now = Instant::now();
        gap.1 = gap.0.map_or(gap.1, |last| gap.1.max(now - last));
        gap.0 = Some(now);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

fn request(key: &Key) -> Enqueue {
    Enqueue {
        key: key.clone(),
        id: JobId::new(key),
        envelope: Bytes::from_static(b"request"),
        policy: JobPolicy::default(),
        merge: None,
        record: None,
        caps: Caps::all(1 << 40),
        owner: String::new(),
        call: None,
    }
}

/// As `DeferLayer::replicas(1)` does it.
fn defers(store: &Store, seen: &Arc<Seen>, lock: String) -> JoinHandle<()> {
    let (store, seen) = (store.clone(), Arc::clone(seen));
    crate::store::spawn(async move {
        while seen.goes_on() {
            let call = request(&Key::custom(&lock));
            let (id, shard, since) = (call.id.clone(), call.key.shard(), store.backend().servers());
            let stored = store.backend().enqueue(call).await;
            if matches!(stored, Ok(Enqueued::Stored { .. }))
                && store.backend().replicated(shard, 1, since).await.is_ok_and(|have| have >= 1)
            {
                seen.accepted.lock().push(id);
                seen.success();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

fn locks(store: &Store, seen: &Arc<Seen>) -> JoinHandle<()> {
    let (store, seen) = (store.as_another_process(), Arc::clone(seen));
    crate::store::spawn(async move {
        while seen.goes_on() {
            let asked = store.lock("x").lease(2 * SECOND).replicas(1).wait(SECOND).acquire().await;
            let Ok(guard) = asked else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            if seen.inside.swap(true, Ordering::SeqCst) {
                seen.overlaps.fetch_add(1, Ordering::SeqCst);
            }
            seen.fences.lock().push(guard.fence());
            tokio::time::sleep(Duration::from_millis(2)).await;
            seen.inside.store(false, Ordering::SeqCst);
            seen.success();
            guard.release().await;
        }
    })
}

async fn under_load(sentinels: &mut Sentinels, fault: impl AsyncFnOnce(&mut Sentinels)) -> String {
    let store = Store::connect(&sentinels.url()).await.expect("the URL is right");
    let seen = Arc::new(Seen::default());
    let mut tasks: Vec<_> = (0..4).map(|n| defers(&store, &seen, format!("job{n}"))).collect();
    tasks.extend((0..4).map(|_| locks(&store, &seen)));
    tokio::time::sleep(SECOND).await;
    fault(sentinels).await;
    sentinels.failed_over().await;
    let before = seen.accepted.lock().len();
    // Without the old one there is no replica that could have anything; until it follows the new one, neither.
    let until = Instant::now() + 60 * SECOND;
    while sentinels.master.is_there() && seen.accepted.lock().len() <= before {
        assert!(Instant::now() < until, "it goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    seen.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("no panic");
    }
    super::usable(&store).await;
    let accepted = seen.accepted.lock().clone();
    let mut lost = Vec::new();
    for id in &accepted {
        let job = insist(async || store.backend().job(id.clone()).await).await;
        lost.extend(job.is_none().then_some(id));
    }
    println!("figure: accepted with a replica and lost {}", lost.len());
    assert!(lost.is_empty(), "{lost:?} were accepted, and are gone");
    let fences = seen.fences.lock().clone();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!(seen.overlaps.load(Ordering::SeqCst), 0, "two had the lock");
    let report = insist(async || store.check().run().await).await;
    assert!(report.is_clean() && report.uncounted == 0, "{report}");
    let gap = seen.gap.lock().1;
    println!("figure: longest time without a success {} ms", gap.as_millis());
    format!("{} accepted ({before} before), {} grants, gap {gap:?}", accepted.len(), fences.len())
}

#[tokio::test]
async fn a_planned_failover_under_load_loses_nothing_that_a_replica_had() {
    let mut sentinels = Sentinels::start().await;
    let figures = under_load(&mut sentinels, async |sentinels| sentinels.fail_over().await).await;
    println!("planned failover: {figures}");
}

#[tokio::test]
async fn a_master_that_dies_under_load_loses_nothing_that_its_replica_had() {
    let mut sentinels = Sentinels::start().await;
    let figures = under_load(&mut sentinels, async |sentinels| sentinels.master.kill()).await;
    println!("dead master: {figures}");
}
