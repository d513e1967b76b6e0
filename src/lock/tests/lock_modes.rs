//! Shared locks, permits and downgrades, through the local queues of two processes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    SECOND, acquire_after_shutdown, expect_busy,
    lock_gate::{enter_defer_gate, enter_gate, new_gate},
};
use crate::{
    defer::DeferLayer,
    gate::{
        Gate as _, KeySource, LeaveAction, ServiceOutcome, Verdict, fake_request::FakeGateRequest,
    },
    lock::{LockLayer, LockRequest},
    store::Store,
};

const MS: Duration = Duration::from_millis(1);

fn reader(store: &Store) -> LockRequest {
    store.lock("x").shared().wait(60 * SECOND)
}

fn writer(store: &Store) -> LockRequest {
    store.lock("x").wait(60 * SECOND)
}

/// Gauge of concurrent holders: current and highest number.
#[derive(Default)]
struct ConcurrencyGauge(AtomicUsize, AtomicUsize);

impl ConcurrencyGauge {
    async fn hold_for(&self, time: Duration) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(time).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_holders_reach_and_never_exceed_the_permits() {
    let store = Store::memory();
    let other = store.as_another_process();
    let gauge = Arc::new(ConcurrencyGauge::default());
    let mut tasks = Vec::new();
    for n in 0..20 {
        let store = if n % 2 == 0 { other.clone() } else { store.clone() };
        let gauge = Arc::clone(&gauge);
        tasks.push(crate::store::spawn(async move {
            for _ in 0..5 {
                let request = store.lock("x").permits(3).wait(60 * SECOND);
                let guard = request.acquire().await.expect("in time");
                gauge.hold_for(2 * MS).await;
                guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(gauge.1.load(Ordering::SeqCst), 3, "all of them, and no more");
    assert!(other.shutdown(SECOND).await);
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn downgrade_admits_readers_and_keeps_writers_waiting() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    let fence = guard.fence();
    let reading = crate::store::spawn(reader(&store).acquire());
    tokio::time::sleep(MS).await;
    let writing = crate::store::spawn(writer(&store).acquire());
    tokio::time::sleep(MS).await;
    let guard = guard.downgrade().await.unwrap();
    assert_eq!(guard.fence(), fence);
    let reader = reading.await.unwrap().unwrap();
    tokio::time::sleep(20 * SECOND).await;
    assert!(!writing.is_finished(), "both are renewed");
    drop((guard, reader));
    drop(writing.await.unwrap().unwrap());
    drop(acquire_after_shutdown(&store).await);
}

/// A job runs under one exclusive lock. Other requests get the busy reply after their own wait and
/// are not deferred.
#[tokio::test(start_paused = true)]
async fn permit_and_lock_set_requests_are_not_deferred() {
    let store = Store::memory();
    let _held = store.lock("x").acquire().await.unwrap();
    let several = || ["x", "y"].map(str::to_owned).to_vec();
    let several = KeySource::functions(move |()| several());
    let several = LockLayer::by(several).store(&store);
    for lock in [new_gate(&store).permits(2), several] {
        let (defer, lock) = (DeferLayer::<()>::new(), lock.wait(2 * SECOND));
        let mut view = FakeGateRequest::new("POST");
        let deferral = enter_defer_gate(&defer, &mut view).await;
        let started = Instant::now();
        assert!(matches!(enter_gate(&lock, &mut view).await, Verdict::Busy(..)));
        assert_eq!(started.elapsed().as_secs(), 2);
        let leave_action = defer.leave(deferral, ServiceOutcome::Answered(409)).await;
        assert!(matches!(leave_action, LeaveAction::AddHeaders(_)));
    }
}

/// The dead writer is at the head of the queue. It must not block further readers for its whole
/// wait.
#[tokio::test]
async fn dead_writer_in_the_queue_is_not_waited_for() {
    let store = Store::memory();
    let first_reader = store.lock("x").shared().acquire().await.expect("the lock is free");
    let backend = store.clone();
    let dying_process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let process = backend.as_another_process();
            let mut acquire = Box::pin(process.lock("x").wait(60 * SECOND).acquire());
            assert!((&mut acquire).now_or_never().is_none(), "it waits");
            // Leaks the future, so that its queue entry stays.
            std::mem::forget((acquire, process));
        });
        std::mem::forget(runtime);
    });
    dying_process.join().expect("the writer is queued");
    assert_eq!(expect_busy(store.lock("x").shared().acquire().await).queue_length, 1);
    let started = Instant::now();
    let second_reader =
        store.lock("x").shared().wait(60 * SECOND).acquire().await.expect("it reads, too");
    assert!(started.elapsed() < 20 * SECOND, "{:?}", started.elapsed());
    drop((first_reader, second_reader));
}
