//! A renewal and a release in flight at once, in either order of arrival: row 11.
//!
//! The faults fix the order, on a paused clock. In either order the lock is free after the release,
//! the next holder keeps its lease, and no loss is reported.

use std::time::Duration;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    LockGuard,
    lock::ReleaseStatus,
    store::{BackendFault, FaultSchedule, Store, faulty_store},
};

const LEASE: Duration = Duration::from_secs(3);

/// Renewals that run before the release and are answered after it, or never.
const RENEWALS_BEFORE_RELEASE: [BackendFault; 3] = [
    BackendFault::SlowReply(Duration::from_secs(1)),
    BackendFault::ReplyTimeout,
    BackendFault::NeverReplies,
];

/// Renewals that run after the release, with or without a reply, or both before and after it.
const RENEWALS_AFTER_RELEASE: [BackendFault; 3] = [
    BackendFault::SlowCall(Duration::from_millis(200)),
    BackendFault::TimeoutThenRun(Duration::from_millis(200)),
    BackendFault::DuplicateRun(Duration::from_millis(200)),
];

/// The release is answered at once, long after the renewal ran, or not in time. (A repeated release
/// may find nothing to release.)
const RELEASE_FAULTS: [Option<BackendFault>; 3] =
    [None, Some(BackendFault::SlowReply(Duration::from_secs(1))), Some(BackendFault::ReplyTimeout)];

/// Acquires a lock and returns while a renewal is in flight.
async fn acquire_with_renewal_in_flight(fault: BackendFault) -> (Store, FaultSchedule, LockGuard) {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
    faults.set("renew", fault, 1);
    while faults.call_count("renew") == 0 {
        tokio::time::sleep(10 * MS).await;
    }
    assert!(guard.remaining() > LEASE / 2, "{fault:?}");
    (store, faults, guard)
}

/// Releases the guard while its renewal is in flight; `next` starts when the release was called.
async fn release_during_renewal<T>(
    (faults, guard): (&FaultSchedule, LockGuard),
    (release, is_dropped): (Option<BackendFault>, bool),
    next: impl AsyncFnOnce() -> T,
) -> T {
    let copy = guard.held_lock();
    if let Some(fault) = release {
        faults.set("release", fault, 1);
    }
    let releases = faults.call_count("release");
    let released = crate::store::spawn(async move {
        if is_dropped {
            drop(guard);
            return None;
        }
        Some(guard.release().await)
    });
    while faults.call_count("release") == releases {
        tokio::time::sleep(MS).await;
    }
    let result = next().await;
    // A drop returns no status.
    if let Some(released) = released.await.unwrap()
        && !matches!(release, Some(BackendFault::ReplyTimeout))
    {
        assert_eq!(released, ReleaseStatus::Released, "{release:?}");
    }
    // Long enough for all calls in flight.
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(copy.loss(), None, "a released lock is not lost");
    result
}

fn renewal_release_pairs() -> impl Iterator<Item = (BackendFault, (Option<BackendFault>, bool))> {
    let renewals = RENEWALS_BEFORE_RELEASE.into_iter().chain(RENEWALS_AFTER_RELEASE);
    let ends = RELEASE_FAULTS.into_iter().flat_map(|release| [(release, false), (release, true)]);
    let ends: Vec<_> = ends.collect();
    renewals.flat_map(move |renewal| ends.clone().into_iter().map(move |end| (renewal, end)))
}

#[tokio::test(start_paused = true)]
async fn release_during_a_renewal_leaves_the_lock_free() {
    for (renewal, end) in renewal_release_pairs() {
        let (store, faults, guard) = acquire_with_renewal_in_flight(renewal).await;
        release_during_renewal((&faults, guard), end, async || {}).await;
        // No renewal follows, and the late one has acquired nothing.
        assert_eq!(faults.call_count("renew"), 1, "{renewal:?} {end:?}");
        drop(acquire_after_shutdown(&store).await);
    }
}

/// The next holder acquires the lock before the renewal of the previous one arrives or is answered.
#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_affect_the_next_holder() {
    for (renewal, end) in renewal_release_pairs() {
        let (store, faults, guard) = acquire_with_renewal_in_flight(renewal).await;
        let (fence, other) = (guard.fence(), store.as_another_process());
        let acquire = async || other.lock("x").fixed_lease(60 * SECOND).acquire().await.unwrap();
        let next = release_during_renewal((&faults, guard), end, acquire).await;
        assert!(next.fence() > fence, "{renewal:?} {end:?}");
        let busy = expect_busy(store.as_another_process().lock("x").acquire().await);
        assert!(
            busy.lease_remaining > 50 * SECOND,
            "{renewal:?} {end:?}: {:?}",
            busy.lease_remaining
        );
        assert_eq!((next.loss(), next.release().await), (None, ReleaseStatus::Released));
        drop(acquire_after_shutdown(&other).await);
    }
}
