//! Ends of a holder other than a release: of its runtime, its task or its thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use futures_util::{FutureExt as _, future::join_all};
use tokio::runtime::{Builder, Runtime};

use super::{SECOND, server_process::ServerProcess, wait_for_queue_length};
use crate::{
    lock::{LockGuard, ReleaseStatus},
    store::Store,
};

fn single_worker_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

async fn acquire_short_lease(store: &Store) -> LockGuard {
    store.lock("x").lease(SECOND).acquire().await.expect("it is free")
}

/// Asserts that a waiter in the holder's process and one in another are served, well before the
/// lease ends.
async fn assert_waiters_served_after(
    store: &Store,
    other: &Store,
    end: impl AsyncFnOnce(LockGuard),
) {
    let guard = store.lock("x").acquire().await.expect("it is free");
    let local = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    let remote = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
    // The first waiter is in the local queue since before the second joined the store's queue.
    wait_for_queue_length(other, 1).await;
    let started = Instant::now();
    end(guard).await;
    // In either order: they arrived at nearly the same time.
    let served = [local, remote].map(|waiter| async {
        let guard = waiter.await.unwrap().expect("it is served");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    });
    join_all(served).await;
    let elapsed = started.elapsed();
    println!("figure: longest until both waiters are served {} ms", elapsed.as_millis());
    assert!(elapsed < 8 * SECOND, "{elapsed:?}");
}

#[tokio::test]
async fn guard_dropped_by_thread_panic_or_abort_serves_waiters() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    println!("on a plain thread");
    assert_waiters_served_after(&store, &other, async |guard| {
        std::thread::spawn(move || drop(guard)).join().unwrap();
    })
    .await;
    println!("by a panic");
    assert_waiters_served_after(&store, &other, async |guard| {
        let panics = move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("as a handler might"));
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    })
    .await;
    println!("by an abort");
    assert_waiters_served_after(&store, &other, async |guard| {
        let task = crate::store::spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        task.abort();
    })
    .await;
}

/// All of a process ends but its threads. The guard is dropped while its runtime ends, or later.
#[test]
fn ended_runtime_of_holder_blocks_lock_for_one_lease_at_most() {
    for later in [false, true] {
        end_runtime_of_holder(later);
    }
}

fn end_runtime_of_holder(drop_later: bool) {
    let runtime = single_worker_runtime();
    let (server, other) = runtime.block_on(async {
        let server = ServerProcess::start().await;
        let other = server.store_with_long_timeout().await;
        (server, other)
    });
    let holder_runtime = single_worker_runtime();
    let mut late_guard = None;
    holder_runtime.block_on(async {
        let store = server.store_with_long_timeout().await;
        let guard = acquire_short_lease(&store).await;
        for _ in 0..3 {
            let mut waiting = Box::pin(store.lock("x").wait(20 * SECOND).acquire());
            assert!(waiting.as_mut().now_or_never().is_none(), "it is held");
            crate::store::spawn(waiting);
        }
        if drop_later {
            late_guard = Some(guard);
        } else {
            crate::store::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
        }
    });
    drop(holder_runtime);
    drop(late_guard);
    runtime.block_on(async {
        let started = Instant::now();
        let guard = other.lock("x").wait(20 * SECOND).acquire().await.expect("it comes free");
        let elapsed = started.elapsed();
        println!("figure: free after a runtime has ended {} ms", elapsed.as_millis());
        // The lease, the queue entry of the three waiters, and a poll.
        assert!(elapsed < 15 * SECOND, "{elapsed:?}, {drop_later}");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    });
}
