//! A renewal and a release that are under way at once, in either order of arrival: row 11.
//!
//! The store does as it is told, on a stopped clock, so each order is had each time. Whichever comes first, nothing is held
//! after the release, what the next one has is his, and nobody is told of a loss.

use std::time::Duration;

use super::{SECOND, busy, free, handover::MS};
use crate::{
    LockGuard,
    lock::ReleaseStatus,
    store::{Fault, Faults, Store, faulty},
};

const LEASE: Duration = Duration::from_secs(3);

/// A renewal that runs before the release and is answered after it, or never.
const BEFORE: [Fault; 3] = [Fault::Slow(Duration::from_secs(1)), Fault::NoReply, Fault::Silence];

/// One that runs when the release has, and is answered or not; or runs on both sides of it.
const AFTER: [Fault; 3] = [
    Fault::Late(Duration::from_millis(200)),
    Fault::Stray(Duration::from_millis(200)),
    Fault::Copy(Duration::from_millis(200)),
];

/// The release is answered at once, long after the renewal has run, or not in time. (Once it was sent again it may be told
/// that there is nothing.)
const RELEASES: [Option<Fault>; 3] =
    [None, Some(Fault::Slow(Duration::from_secs(1))), Some(Fault::NoReply)];

/// A lock whose renewal is on its way.
async fn renewing(fault: Fault) -> (Store, Faults, LockGuard) {
    let (store, faults) = faulty();
    let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
    faults.set("renew", fault, 1);
    while faults.seen("renew") == 0 {
        tokio::time::sleep(10 * MS).await;
    }
    assert!(guard.remaining() > LEASE / 2, "{fault:?}");
    (store, faults, guard)
}

/// It is given back while its renewal is under way; what `next` does begins when the store has heard of that.
async fn given_back<T>(
    (faults, guard): (&Faults, LockGuard),
    (release, is_dropped): (Option<Fault>, bool),
    next: impl AsyncFnOnce() -> T,
) -> T {
    let copy = guard.held_lock();
    if let Some(fault) = release {
        faults.set("release", fault, 1);
    }
    let releases = faults.seen("release");
    let released = crate::store::spawn(async move {
        if is_dropped {
            drop(guard);
            return None;
        }
        Some(guard.release().await)
    });
    while faults.seen("release") == releases {
        tokio::time::sleep(MS).await;
    }
    let came = next().await;
    // Who drops it is told nothing.
    if let Some(released) = released.await.unwrap()
        && !matches!(release, Some(Fault::NoReply))
    {
        assert_eq!(released, ReleaseStatus::Released, "{release:?}");
    }
    // Long enough for all that was under way.
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(copy.loss(), None, "it was given back, not lost");
    came
}

fn races() -> impl Iterator<Item = (Fault, (Option<Fault>, bool))> {
    let renewals = BEFORE.into_iter().chain(AFTER);
    let ends = RELEASES.into_iter().flat_map(|release| [(release, false), (release, true)]);
    let ends: Vec<_> = ends.collect();
    renewals.flat_map(move |renewal| ends.clone().into_iter().map(move |end| (renewal, end)))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_held_after_a_release_that_meets_a_renewal() {
    for (renewal, end) in races() {
        let (store, faults, guard) = renewing(renewal).await;
        given_back((&faults, guard), end, async || {}).await;
        // No renewal follows, and what has come late has taken nothing.
        assert_eq!(faults.seen("renew"), 1, "{renewal:?} {end:?}");
        drop(free(&store).await);
    }
}

/// The next one has it before the renewal of the one before arrives, or is answered.
#[tokio::test(start_paused = true)]
async fn the_next_holder_does_not_notice_a_late_renewal() {
    for (renewal, end) in races() {
        let (store, faults, guard) = renewing(renewal).await;
        let (fence, other) = (guard.fence(), store.as_another_process());
        let take = async || other.lock("x").fixed_lease(60 * SECOND).acquire().await.unwrap();
        let next = given_back((&faults, guard), end, take).await;
        assert!(next.fence() > fence, "{renewal:?} {end:?}");
        let told = busy(store.as_another_process().lock("x").acquire().await);
        assert!(
            told.lease_remaining > 50 * SECOND,
            "{renewal:?} {end:?}: {:?}",
            told.lease_remaining
        );
        assert_eq!((next.loss(), next.release().await), (None, ReleaseStatus::Released));
        drop(free(&other).await);
    }
}
