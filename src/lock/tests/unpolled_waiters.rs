//! Locks that pass to who waits, in a future that is not polled.

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    lock::ReleaseStatus,
    store::{BackendFault, Store, faulty_store},
};

/// A future that waits, and was polled once.
fn poll_into_queue<F: Future + Unpin>(mut waits: F) -> F {
    assert!((&mut waits).now_or_never().is_none(), "it waits");
    waits
}

/// Nobody runs under it, so it is not renewed: a `select!` loop that is at something else would keep everybody out.
#[tokio::test(start_paused = true)]
async fn unreceived_grant_ends_with_its_lease() {
    let store = Store::memory();
    let held = acquire_after_shutdown(&store).await;
    let waits = poll_into_queue(Box::pin(store.lock("x").wait(SECOND).acquire()));
    let also = poll_into_queue(Box::pin(store.lock("x").wait(60 * SECOND).acquire()));
    held.release().await;
    let started = Instant::now();
    let other = store.as_another_process();
    let next = other.lock("x").wait(60 * SECOND).acquire().await.expect("it is free in the end");
    // The lease of each of the two.
    assert!(started.elapsed() <= 21 * SECOND, "{:?}", started.elapsed());
    expect_busy(waits.await);
    let released = crate::store::spawn(async move {
        tokio::time::sleep(SECOND).await;
        next.release().await
    });
    let mine = also.await.expect("it waits for longer, and has it again");
    assert_eq!(mine.loss(), None);
    assert_eq!(released.await.unwrap(), ReleaseStatus::Released);
    assert_eq!(mine.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn grant_received_late_is_renewed_from_then_on() {
    let store = Store::memory();
    for late in [0, 4, 9] {
        let held = acquire_after_shutdown(&store).await;
        let waits = poll_into_queue(Box::pin(store.lock("x").wait(60 * SECOND).acquire()));
        held.release().await;
        tokio::time::sleep(late * SECOND).await;
        let mine = waits.await.expect("it is there");
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(mine.loss(), None, "after {late} s");
        assert_eq!(mine.release().await, ReleaseStatus::Released);
    }
}

/// The one who did not come for it leaves: whoever has it next has a lease that is renewed.
#[tokio::test(start_paused = true)]
async fn unreceived_lease_is_renewed_for_the_next_waiter() {
    let (store, faults) = faulty_store();
    let request = || store.lock("x").handover_limits(16, 60 * SECOND).wait(60 * SECOND);
    let held = request().acquire().await.unwrap();
    let first = poll_into_queue(Box::pin(request().acquire()));
    let next = crate::store::spawn(request().acquire());
    tokio::time::sleep(MS).await;
    held.release().await;
    tokio::time::sleep(4 * SECOND).await;
    drop(first);
    let mine = next.await.unwrap().expect("it is the next");
    assert_eq!(faults.call_count("release"), 0, "the lease passed on");
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(mine.loss(), None);
    assert_eq!(mine.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_ended_before_receipt_is_acquired_anew() {
    let store = Store::memory();
    let held = acquire_after_shutdown(&store).await;
    let fixed = store.lock("x").fixed_lease(SECOND).wait(60 * SECOND);
    let waits = poll_into_queue(Box::pin(fixed.acquire()));
    held.release().await;
    tokio::time::sleep(5 * SECOND).await;
    let mine = waits.await.expect("it may wait for longer, and is asked for again");
    assert_eq!(mine.loss(), None);
    assert_eq!(mine.release().await, ReleaseStatus::Released);
}

/// The first to come asks for all, in its own future; a task goes on with that.
#[tokio::test(start_paused = true)]
async fn unpolled_leader_does_not_block_other_waiters() {
    for fault in [BackendFault::SlowCall(MS * 10), BackendFault::SlowReply(MS * 10)] {
        let (store, faults) = faulty_store();
        faults.set("acquire", fault, 1);
        let request = || store.lock("x").wait(60 * SECOND).acquire();
        let first = poll_into_queue(Box::pin(request()));
        let started = Instant::now();
        let next = request().await.expect("it is there when the lease of the first has ended");
        assert!(started.elapsed() < 12 * SECOND, "{fault:?}: {:?}", started.elapsed());
        let third = crate::store::spawn(request().into_future());
        tokio::time::sleep(MS).await;
        next.release().await;
        third.await.unwrap().expect("it stands behind it").release().await;
        first
            .await
            .unwrap_or_else(|e| panic!("{fault:?}: it may wait still: {e:?}"))
            .release()
            .await;
        drop(acquire_after_shutdown(&store).await);
    }
}

/// Its answer comes when a task asks for them already: "busy", and it stands in line as the others do.
#[tokio::test(start_paused = true)]
async fn leader_polled_late_waits_like_the_others() {
    let (store, faults) = faulty_store();
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    faults.set("acquire", BackendFault::SlowReply(SECOND), 1);
    let request = || crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire().into_future());
    let all = [request(), request(), request()];
    tokio::time::sleep(3 * SECOND).await;
    held.release().await;
    for one in all {
        one.await.unwrap().expect("each has it").release().await;
    }
    drop(acquire_after_shutdown(&store).await);
}
