//! A renewal and a release that are under way at once, in either order of arrival: row 11.
//!
//! The store does as it is told, on a stopped clock, so each order is had each time. Whichever comes first, nothing is held
//! after the release, what the next one has is his, and nobody is told of a loss.

use std::time::Duration;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    LockGuard,
    lock::ReleaseStatus,
    store::{BackendFault, FaultSchedule, Store, faulty_store},
};

const LEASE: Duration = Duration::from_secs(3);

/// A renewal that runs before the release and is answered after it, or never.
const RENEWALS_BEFORE_RELEASE: [BackendFault; 3] = [
    BackendFault::SlowReply(Duration::from_secs(1)),
    BackendFault::ReplyTimeout,
    BackendFault::NeverReplies,
];

/// One that runs when the release has, and is answered or not; or runs on both sides of it.
const RENEWALS_AFTER_RELEASE: [BackendFault; 3] = [
    BackendFault::SlowCall(Duration::from_millis(200)),
    BackendFault::TimeoutThenRun(Duration::from_millis(200)),
    BackendFault::DuplicateRun(Duration::from_millis(200)),
];

/// The release is answered at once, long after the renewal has run, or not in time. (Once it was sent again it may be told
/// that there is nothing.)
const RELEASE_FAULTS: [Option<BackendFault>; 3] =
    [None, Some(BackendFault::SlowReply(Duration::from_secs(1))), Some(BackendFault::ReplyTimeout)];

/// A lock whose renewal is on its way.
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

/// It is given back while its renewal is under way; what `next` does begins when the store has heard of that.
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
    let came = next().await;
    // Who drops it is told nothing.
    if let Some(released) = released.await.unwrap()
        && !matches!(release, Some(BackendFault::ReplyTimeout))
    {
        assert_eq!(released, ReleaseStatus::Released, "{release:?}");
    }
    // Long enough for all that was under way.
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(copy.loss(), None, "it was given back, not lost");
    came
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
        // No renewal follows, and what has come late has taken nothing.
        assert_eq!(faults.call_count("renew"), 1, "{renewal:?} {end:?}");
        drop(acquire_after_shutdown(&store).await);
    }
}

/// The next one has it before the renewal of the one before arrives, or is answered.
#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_affect_the_next_holder() {
    for (renewal, end) in renewal_release_pairs() {
        let (store, faults, guard) = acquire_with_renewal_in_flight(renewal).await;
        let (fence, other) = (guard.fence(), store.as_another_process());
        let take = async || other.lock("x").fixed_lease(60 * SECOND).acquire().await.unwrap();
        let next = release_during_renewal((&faults, guard), end, take).await;
        assert!(next.fence() > fence, "{renewal:?} {end:?}");
        let told = expect_busy(store.as_another_process().lock("x").acquire().await);
        assert!(
            told.lease_remaining > 50 * SECOND,
            "{renewal:?} {end:?}: {:?}",
            told.lease_remaining
        );
        assert_eq!((next.loss(), next.release().await), (None, ReleaseStatus::Released));
        drop(acquire_after_shutdown(&other).await);
    }
}
