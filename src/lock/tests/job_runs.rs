//! The lock of a run, in the layers that the run passes.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;

use super::{
    expect_busy,
    lock_gate::{enter_gate, new_gate},
};
use crate::{
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, ReplayMarker, RunningJob, Verdict,
        fake_request::FakeGateRequest,
    },
    lock::LockGuard,
    store::{BackendFault, JobId, LockLoss, Store, faulty_store},
};

/// Request of a run under this lock, and its replay marker.
fn replayed_request(store: &Store, lock: &LockGuard) -> (FakeGateRequest, ReplayMarker) {
    let deferred = RunningJob {
        id: JobId::new(lock.key()),
        attempt: 1,
        accepted_at: SystemTime::UNIX_EPOCH,
        fence: 1,
    };
    let hold_state = lock.hold_state().expect("it is this process's own");
    let marker = ReplayMarker::new(deferred, store, Arc::clone(hold_state));
    let mut view = FakeGateRequest::new("POST");
    view.insert_extension(marker.clone());
    (view, marker)
}

#[tokio::test(start_paused = true)]
async fn run_lock_does_not_count_in_another_store() {
    let (run_store, other) = (Store::memory(), Store::memory());
    let run = run_store.lock("x").acquire().await.unwrap();
    let held = other.lock("x").acquire().await.unwrap();
    let (mut view, marker) = replayed_request(&run_store, &run);
    let verdict = enter_gate(&new_gate(&other), &mut view).await;
    assert!(matches!(verdict, Verdict::Busy(..)), "{verdict:?}");
    assert!(!marker.has_passed_lock() && marker.met_busy_lock_with(409));
    held.release().await;
    let verdict = enter_gate(&new_gate(&other), &mut view).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    assert!(!marker.met_busy_lock_with(409), "the retry passed the lock and has run");
    expect_busy(other.lock("x").acquire().await);
}

/// The claim of the job did not wait for replicas.
#[tokio::test(start_paused = true)]
async fn run_lock_counts_once_replicas_confirm_it() {
    let (store, faults) = faulty_store();
    let run = store.lock("x").acquire().await.unwrap();
    let (mut view, marker) = replayed_request(&store, &run);
    let lock = new_gate(&store).min_replicas(1);
    faults.set("replicated", BackendFault::Unavailable, 1);
    let verdict = enter_gate(&lock, &mut view).await;
    assert!(matches!(verdict, Verdict::Answer(ref reply) if reply.status == 503), "{verdict:?}");
    assert!(marker.met_busy_lock_with(503), "the run is not charged");
    let verdict = enter_gate(&lock, &mut view).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
}

/// The run reaches its lock late, since its thread was busy. Another run may have started
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn run_with_an_ended_lock_reaches_no_handler() {
    let store = Store::memory();
    let run = store.lock("x").acquire().await.unwrap();
    let (mut view, marker) = replayed_request(&store, &run);
    run.release().await;
    let _other = store.lock("x").acquire().await.expect("it is free");
    let verdict = new_gate(&store).inspect(&mut view);
    assert!(
        matches!(verdict, InitialVerdict::Answer(ref reply) if reply.status == 503),
        "{verdict:?}"
    );
    assert!(!marker.has_passed_lock());

    let lease = Duration::from_secs(1);
    let run = store.lock("y").fixed_lease(lease).acquire().await.unwrap();
    let (mut view, marker) = replayed_request(&store, &run);
    tokio::time::sleep(2 * lease).await;
    let verdict = new_gate(&store).inspect(&mut view);
    assert!(matches!(verdict, InitialVerdict::Answer(_)), "{verdict:?}");
    assert!(!marker.has_passed_lock());
}

/// An outer layer may have moved the call to its own task and answered in its place.
#[tokio::test(start_paused = true)]
async fn request_admitted_by_a_run_lock_is_in_flight() {
    let store = Store::memory();
    let run = store.lock("x").acquire().await.unwrap();
    let (mut view, marker) = replayed_request(&store, &run);
    let lock = new_gate(&store);
    assert!(!marker.is_in_flight());
    let Verdict::Pass(ticket) = enter_gate(&lock, &mut view).await else { panic!("it is its own") };
    assert!(marker.is_in_flight());
    let mut stop = std::pin::pin!(lock.cancellation(&ticket));
    assert!(stop.as_mut().now_or_never().is_none());
    run.lease().expect("it is this process's own").mark_lost(LockLoss::Taken);
    stop.await;
    drop(ticket);
    assert!(!marker.is_in_flight());
}
