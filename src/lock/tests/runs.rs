//! The lock of a deferred run, in the layers that the run comes by.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;

use super::{
    busy,
    seam::{enter, gate},
};
use crate::{
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, ReplayMarker, RunningJob, Verdict,
        fake::FakeView,
    },
    lock::LockGuard,
    store::{Fault, JobId, LockLoss, Store, faulty},
};

/// A request that its worker sends again, under this lock.
fn run_of(store: &Store, lock: &LockGuard) -> (FakeView, ReplayMarker) {
    let deferred = RunningJob {
        id: JobId::new(lock.key()),
        attempt: 1,
        accepted_at: SystemTime::UNIX_EPOCH,
        fence: 1,
    };
    let facts = lock.hold_state().expect("it is this process's own");
    let marker = ReplayMarker::new(deferred, store, Arc::clone(facts));
    let mut view = FakeView::new("POST");
    view.insert_extension(marker.clone());
    (view, marker)
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_run_is_no_lock_of_another_store() {
    let (mine, other) = (Store::memory(), Store::memory());
    let run = mine.lock("x").acquire().await.unwrap();
    let held = other.lock("x").acquire().await.unwrap();
    let (mut view, marker) = run_of(&mine, &run);
    let verdict = enter(&gate(&other), &mut view).await;
    assert!(matches!(verdict, Verdict::Busy(..)), "{verdict:?}");
    assert!(!marker.has_passed_lock() && marker.met_busy_lock_with(409));
    held.release().await;
    let verdict = enter(&gate(&other), &mut view).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    assert!(
        !marker.met_busy_lock_with(409),
        "a retry layer came again, and what answers now has run"
    );
    busy(other.lock("x").acquire().await);
}

/// The worker has claimed the job without waiting for replicas.
#[tokio::test(start_paused = true)]
async fn the_lock_of_a_run_counts_when_replicas_have_it() {
    let (store, faults) = faulty();
    let run = store.lock("x").acquire().await.unwrap();
    let (mut view, marker) = run_of(&store, &run);
    let lock = gate(&store).min_replicas(1);
    faults.set("replicated", Fault::Away, 1);
    let verdict = enter(&lock, &mut view).await;
    assert!(matches!(verdict, Verdict::Answer(ref reply) if reply.status == 503), "{verdict:?}");
    assert!(marker.met_busy_lock_with(503), "the run is not charged");
    let verdict = enter(&lock, &mut view).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
}

/// A run that came late to its lock, because its thread was busy: another one may have begun by now.
#[tokio::test(start_paused = true)]
async fn a_run_whose_lock_is_over_comes_to_no_handler() {
    let store = Store::memory();
    let run = store.lock("x").acquire().await.unwrap();
    let (mut view, marker) = run_of(&store, &run);
    run.release().await;
    let _other = store.lock("x").acquire().await.expect("it is free");
    let asked = gate(&store).inspect(&mut view);
    assert!(matches!(asked, InitialVerdict::Answer(ref reply) if reply.status == 503), "{asked:?}");
    assert!(!marker.has_passed_lock());

    let lease = Duration::from_secs(1);
    let run = store.lock("y").fixed_lease(lease).acquire().await.unwrap();
    let (mut view, marker) = run_of(&store, &run);
    tokio::time::sleep(2 * lease).await;
    let asked = gate(&store).inspect(&mut view);
    assert!(matches!(asked, InitialVerdict::Answer(_)), "{asked:?}");
    assert!(!marker.has_passed_lock());
}

/// A layer further out may have sent the call to a task of its own, and have answered for it.
#[tokio::test(start_paused = true)]
async fn what_has_passed_under_the_lock_of_a_run_is_under_way() {
    let store = Store::memory();
    let run = store.lock("x").acquire().await.unwrap();
    let (mut view, marker) = run_of(&store, &run);
    let lock = gate(&store);
    assert!(!marker.is_in_flight());
    let Verdict::Pass(ticket) = enter(&lock, &mut view).await else { panic!("it is its own") };
    assert!(marker.is_in_flight());
    let mut stop = std::pin::pin!(lock.cancellation(&ticket));
    assert!(stop.as_mut().now_or_never().is_none());
    run.lease().expect("it is this process's own").mark_lost(LockLoss::Taken);
    stop.await;
    drop(ticket);
    assert!(!marker.is_in_flight());
}
