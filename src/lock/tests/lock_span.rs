//! The span of an acquire and its hold.

use tracing::Level;

use super::{SECOND, revoke_lease};
use crate::{
    lock::ReleaseStatus,
    store::{CapturedLog, Store},
};

#[tokio::test(start_paused = true)]
async fn span_has_the_times_of_wait_and_hold_apart() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::INFO);
    let store = Store::memory();
    let first = store.lock("x").acquire().await.expect("it is free");
    let waiter = tokio::spawn(store.lock("x").wait(SECOND * 10).acquire());
    tokio::time::sleep(SECOND * 2).await;
    first.release().await;
    let second = waiter.await.expect("it ends").expect("it is released");
    tokio::time::sleep(SECOND * 3).await;
    drop(second);
    log.assert_contains("lockgate.wait_ms=0 outcome=\"granted\" fence=");
    log.assert_contains(" lockgate.hold_ms=2000}");
    log.assert_contains("lockgate.wait_ms=2000 outcome=\"granted\" fence=");
    log.assert_contains(" lockgate.hold_ms=3000}");
    assert!(!log.text().contains("lock=x"), "names are hashed: {}", log.text());
}

#[tokio::test(start_paused = true)]
async fn refused_and_dropped_waits_have_spans_without_a_hold() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::INFO);
    let store = Store::memory();
    let _held = store.locks(["x", "y"]).acquire().await.expect("they are free");
    assert!(store.lock("x").acquire().await.is_err());
    let waiting = store.lock("x").wait(SECOND * 10).acquire();
    assert!(tokio::time::timeout(SECOND, waiting).await.is_err());
    log.assert_contains("lockgate.wait_ms=0 outcome=\"busy\"");
    log.assert_contains("lockgate.wait_ms=1000}");
    assert!(!log.text().contains("hold_ms"), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn span_of_a_lost_lock_is_an_error_with_the_reason() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::INFO);
    let store = Store::memory();
    let lapsed = store.lock("x").fixed_lease(SECOND).acquire().await.expect("it is free");
    lapsed.lost().await;
    drop(lapsed);
    log.assert_contains(" loss=HeldTooLong otel.status_code=\"ERROR\"}");

    // Only the release finds that the lock was taken.
    let taken = store.lock("y").acquire().await.expect("it is free");
    revoke_lease(&store, taken.lease().expect("it is its own")).await;
    assert_eq!(taken.release().await, ReleaseStatus::AlreadyLost);
    log.assert_contains("lockgate.hold_ms=0 loss=Taken otel.status_code=\"ERROR\"}");
}

#[tokio::test(start_paused = true)]
async fn span_of_several_locks_tells_the_loss_of_any() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::INFO);
    let store = Store::memory();
    let locks = store.locks(["x", "y"]).acquire().await.expect("they are free");
    let (_, last) = locks.guards.last().expect("there are two");
    revoke_lease(&store, last.lease().expect("it is its own")).await;
    last.lost().await;
    drop(locks);
    log.assert_contains(" loss=Taken otel.status_code=\"ERROR\"}");
}
