//! The lock engine on the embedded store, with tokio's clock stopped: time passes when nothing runs.

mod busy_policy;
pub(crate) mod cancellation;
mod downgrade;
mod failed_renewals;
mod fence_and_delegation_headers;
mod handover;
mod job_runs;
mod late_calls;
mod late_grants;
mod lease_regressions;
mod lease_terms;
mod lock_gate;
mod lock_modes;
mod lock_set;
mod loss_policy;
mod max_waiters;
pub(crate) mod reader_batches;
mod reentrant_acquire;
mod renewal_release_races;
mod setting_parity;
mod snapshot_prefetch;
mod unpolled_waiters;

use std::time::Duration;

use super::{AcquireError, LockBusy, LockGuard};
use crate::store::{LockLease, Store};

const SECOND: Duration = Duration::from_secs(1);

async fn acquire_after_shutdown(store: &Store) -> LockGuard {
    assert!(store.shutdown(SECOND).await, "something was not given back");
    // Another process, so that no local line or nonce of this one helps.
    store.as_another_process().lock("x").acquire().await.expect("the lock is free")
}

/// Takes a lock away, as an operator does who deletes its key.
async fn revoke_lease(store: &Store, lease: &LockLease) {
    let (key, me) = (lease.key.clone(), lease.token.clone());
    store.backend().release(key, me, lease.terms.mode).await.expect("the store is there");
}

fn expect_busy(outcome: Result<LockGuard, AcquireError>) -> LockBusy {
    match outcome {
        Err(AcquireError::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    }
}

/// Its time is over at the very moment at which somebody looks for it, finds that it waits no more, and ends its line.
#[tokio::test(start_paused = true)]
async fn timed_out_waiter_reports_the_holder_and_the_queue() {
    let store = Store::memory();
    let other = store.as_another_process();
    let _held = other.lock("x").fixed_lease(50 * SECOND).acquire().await.expect("it is free");
    for wait in (1..20).map(|n| n * SECOND / 10) {
        let told = expect_busy(store.lock("x").wait(wait).acquire().await);
        // What it would itself have asked for is 10 s.
        assert!(told.lease_remaining > 20 * SECOND, "not what is known, after {wait:?}: {told:?}");
        assert!(told.waited.is_some_and(|waited| waited >= wait), "{told:?}");
    }
    // Of those who wait with it, too, for whom the store has one place: also while others of them go on.
    let waits = (1..=8).map(|n| n * SECOND / 2);
    let all = waits.map(|wait| store.lock("x").wait(wait).acquire().into_future());
    for (gone, outcome) in (0..).zip(futures_util::future::join_all(all).await) {
        let told = expect_busy(outcome);
        assert!(
            told.queue_length >= 8 - gone && told.lease_remaining > 10 * SECOND,
            "{gone} have gone: {told:?}"
        );
    }
}
