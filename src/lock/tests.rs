//! Lock engine on the embedded store, with tokio's clock paused: time passes when all tasks are
//! idle.

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
mod lock_span;
mod longest_waits;
mod loss_policy;
mod lost_holder;
mod max_waiters;
pub(crate) mod reader_batches;
mod reentrant_acquire;
mod renewal_release_races;
mod setting_parity;
mod snapshot_prefetch;
mod unpolled_waiters;

use std::time::Duration;

use super::{AcquireError, LockBusy, LockGuard, LockLayer};
use crate::{
    gate::{ClientAddress, KeySource, MissingAddress},
    store::{LockLease, Store},
};

const SECOND: Duration = Duration::from_secs(1);

async fn acquire_after_shutdown(store: &Store) -> LockGuard {
    assert!(store.shutdown(SECOND).await, "a lock or a queue entry is left");
    // Another process, which shares neither the local queues nor the nonces of this one.
    store.as_another_process().lock("x").acquire().await.expect("the lock is free")
}

/// Removes a lease from the store, as an operator does who deletes its key.
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

/// The wait ends just when the queue task polls, finds no waiter, and removes the local queue.
#[tokio::test(start_paused = true)]
async fn timed_out_waiter_reports_the_holder_and_the_queue() {
    let store = Store::memory();
    let other = store.as_another_process();
    let _held = other.lock("x").fixed_lease(50 * SECOND).acquire().await.expect("it is free");
    for wait in (1..20).map(|n| n * SECOND / 10) {
        let busy = expect_busy(store.lock("x").wait(wait).acquire().await);
        // The waiter's own lease is 10 s.
        assert!(busy.lease_remaining > 20 * SECOND, "wrong lease after {wait:?}: {busy:?}");
        assert!(busy.waited.is_some_and(|waited| waited >= wait), "{busy:?}");
    }
    // Waiters of one process share a queue entry. Each of them reports the queue, while others
    // still wait.
    let waits = (1..=8).map(|n| n * SECOND / 2);
    let all = waits.map(|wait| store.lock("x").wait(wait).acquire().into_future());
    for (timed_out, outcome) in (0..).zip(futures_util::future::join_all(all).await) {
        let busy = expect_busy(outcome);
        assert!(
            busy.queue_length >= 8 - timed_out && busy.lease_remaining > 10 * SECOND,
            "{timed_out} have gone: {busy:?}"
        );
    }
}

#[test]
fn invalid_layer_settings_are_config_errors() {
    let client = ClientAddress::peer().on_missing(MissingAddress::Skip);
    let layer = || LockLayer::<()>::by_header("x-order");
    let refused = [
        LockLayer::<()>::try_by(KeySource::client(client.clone())),
        LockLayer::<()>::try_by_client(client),
        LockLayer::<()>::try_by_extension::<u64>(""),
        LockLayer::<()>::try_by_path_params([""; 0]),
        LockLayer::<()>::try_by_path_params_as::<u64>([""; 0]),
        LockLayer::<()>::try_by_keys("", |()| Vec::new()),
        layer().try_and_header("x pass"),
        layer().try_and_key("", |()| None),
        layer().try_stripes(0),
        layer().try_stripes(65_537),
    ];
    for (n, result) in refused.into_iter().enumerate() {
        let error = result.map(drop).expect_err("it is refused");
        assert_eq!(error.kind(), crate::ErrorKind::Config, "{n}: {error}");
    }
    assert!(layer().try_and_header("X-Tenant").is_ok_and(|layer| layer.try_stripes(16).is_ok()));
}
