//! What is dropped, at any of its await points.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures_util::future::join_all;

use crate::{
    lock::{AcquireError, LockGuard, LockRequest, tests::SECOND},
    store::Store,
};

/// Of what is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DropPhase {
    /// All is ready for it, and it is polled for the first time next.
    BeforeFirstPoll,
    /// It has just been dropped.
    Dropped,
}

/// Polls `n` times, with all that is to be done in between, then drops; true if it was done before.
async fn poll_then_drop(n: usize, future: impl Future, between: Duration) -> bool {
    let mut future = pin!(future);
    for _ in 0..n {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready()));
        if polled.await {
            return true;
        }
        tokio::time::sleep(between).await;
    }
    false
}

/// What is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DropScenario {
    /// Asking for a free lock, once or with a wait.
    TryAcquire,
    WaitWhileFree,
    /// Waiting for one that another process has, and gives back meanwhile.
    WaitForOtherProcess,
    /// Waiting for one that this process has.
    WaitForSameProcess,
    SharedAcquire,
    PermitAcquire,
    /// Giving it back, to the store or past others who wait here.
    Release,
    Handover,
    Downgrade,
    /// Two locks, the first of which another process has and gives back meanwhile; and giving both back.
    AcquireLockSet,
    ReleaseLockSet,
    /// Asking again and again for one that another process has, and gives back meanwhile.
    Retry,
    /// Waiting for one that another process has, and for a record under it.
    AcquireWithRecord,
    /// Readers of one place, let in together.
    ReaderBatch,
    /// Holding it while replicas are waited for, which a server without any has not.
    AwaitReplicas,
}

/// What takes no time on a real server.
pub(crate) const FAST_SCENARIOS: [DropScenario; 9] = [
    DropScenario::TryAcquire,
    DropScenario::WaitWhileFree,
    DropScenario::WaitForOtherProcess,
    DropScenario::WaitForSameProcess,
    DropScenario::SharedAcquire,
    DropScenario::PermitAcquire,
    DropScenario::Release,
    DropScenario::Handover,
    DropScenario::Downgrade,
];

/// The others.
pub(crate) const SLOW_SCENARIOS: [DropScenario; 6] = [
    DropScenario::AcquireLockSet,
    DropScenario::ReleaseLockSet,
    DropScenario::Retry,
    DropScenario::AcquireWithRecord,
    DropScenario::ReaderBatch,
    DropScenario::AwaitReplicas,
];

/// Drops it after `n` polls; true if that was too late.
pub(crate) async fn drop_after(
    n: usize,
    way: DropScenario,
    store: &Store,
    between: Duration,
) -> bool {
    drop_after_with_observer(n, way, store, between, &|_| ()).await
}

/// The same, and says when.
pub(crate) async fn drop_after_with_observer(
    n: usize,
    way: DropScenario,
    store: &Store,
    between: Duration,
    tell: &dyn Fn(DropPhase),
) -> bool {
    let other = store.as_another_process();
    let drop_it = DropRun { poll_count: n, store, other: &other, between, on_phase: tell };
    let done = match way {
        DropScenario::TryAcquire
        | DropScenario::WaitWhileFree
        | DropScenario::WaitForOtherProcess
        | DropScenario::WaitForSameProcess => drop_it.drop_acquire(way).await,
        DropScenario::SharedAcquire | DropScenario::PermitAcquire | DropScenario::ReaderBatch => {
            drop_it.drop_shared_acquire(way).await
        }
        DropScenario::Release | DropScenario::Handover | DropScenario::Downgrade => {
            drop_it.drop_release(way).await
        }
        DropScenario::AcquireLockSet | DropScenario::ReleaseLockSet => {
            drop_it.drop_lock_set(way).await
        }
        DropScenario::Retry | DropScenario::AcquireWithRecord | DropScenario::AwaitReplicas => {
            drop_it.drop_other_call(way).await
        }
    };
    done.assert_shutdown_of(&other).await
}

/// What is dropped, and when.
struct DropRun<'a> {
    poll_count: usize,
    store: &'a Store,
    other: &'a Store,
    between: Duration,
    on_phase: &'a dyn Fn(DropPhase),
}

fn lock_request(store: &Store) -> LockRequest {
    store.lock("x")
}

fn acquire_waiting(request: LockRequest) -> impl Future<Output = Result<LockGuard, AcquireError>> {
    request.wait(20 * SECOND).acquire()
}

impl DropRun<'_> {
    async fn poll_and_drop(&self, future: impl Future) -> bool {
        (self.on_phase)(DropPhase::BeforeFirstPoll);
        let done = poll_then_drop(self.poll_count, future, self.between).await;
        (self.on_phase)(DropPhase::Dropped);
        done
    }

    /// The same, while somebody has the lock, and gives it back meanwhile.
    async fn poll_and_drop_behind(&self, holder: &Store, future: impl Future) -> bool {
        let (held, after) =
            (lock_request(holder).acquire().await.expect("it is free"), 3 * self.between);
        let releasing = crate::store::spawn(async move {
            tokio::time::sleep(after).await;
            held.release().await;
        });
        let done = self.poll_and_drop(future).await;
        releasing.await.expect("no panic");
        done
    }

    async fn drop_acquire(&self, way: DropScenario) -> bool {
        let Self { store, other, .. } = self;
        match way {
            DropScenario::TryAcquire => self.poll_and_drop(lock_request(store).acquire()).await,
            DropScenario::WaitWhileFree => {
                self.poll_and_drop(acquire_waiting(lock_request(store))).await
            }
            DropScenario::WaitForOtherProcess => {
                self.poll_and_drop_behind(other, acquire_waiting(lock_request(store))).await
            }
            _ => self.poll_and_drop_behind(store, acquire_waiting(lock_request(store))).await,
        }
    }

    async fn drop_shared_acquire(&self, way: DropScenario) -> bool {
        let Self { store, other, .. } = self;
        match way {
            DropScenario::SharedAcquire => {
                let held = lock_request(other).shared().acquire().await.expect("it is free");
                let done = self.poll_and_drop(acquire_waiting(lock_request(store).shared())).await;
                drop(held);
                done
            }
            DropScenario::PermitAcquire => {
                let held = lock_request(other).permits(2).acquire().await.expect("it is free");
                let done =
                    self.poll_and_drop(acquire_waiting(lock_request(store).permits(2))).await;
                drop(held);
                done
            }
            _ => {
                let readers = (0..5).map(|_| acquire_waiting(lock_request(store).shared()));
                self.poll_and_drop_behind(other, join_all(readers)).await
            }
        }
    }

    async fn drop_release(&self, way: DropScenario) -> bool {
        let store = self.store;
        match way {
            DropScenario::Release => {
                let held = lock_request(store).acquire().await.expect("it is free");
                self.poll_and_drop(held.release()).await
            }
            DropScenario::Handover => {
                // In strict order each release is a call that asks for the next.
                let strict = || lock_request(store).strict_order();
                let held = strict().acquire().await.expect("it is free");
                let next = crate::store::spawn(acquire_waiting(strict()));
                tokio::time::sleep(self.between).await;
                let done = self.poll_and_drop(held.release()).await;
                drop(next.await.expect("no panic").expect("served all the same"));
                done
            }
            _ => {
                let held = lock_request(store).acquire().await.expect("it is free");
                self.poll_and_drop(held.downgrade()).await
            }
        }
    }

    async fn drop_lock_set(&self, way: DropScenario) -> bool {
        // The undo of the one call for both is in doubt for a lease.
        let both = self.store.locks(["x", "y"]).lease(2 * SECOND);
        if matches!(way, DropScenario::AcquireLockSet) {
            return self.poll_and_drop_behind(self.other, both.wait(20 * SECOND).acquire()).await;
        }
        let held = both.acquire().await.expect("both are free");
        self.poll_and_drop(held.release()).await
    }

    async fn drop_other_call(&self, way: DropScenario) -> bool {
        let Self { store, other, .. } = self;
        match way {
            DropScenario::Retry => {
                let asked = lock_request(store).retry(1000, Duration::from_millis(10));
                self.poll_and_drop_behind(other, asked.acquire()).await
            }
            DropScenario::AcquireWithRecord => {
                let asked = lock_request(store).wait(20 * SECOND);
                self.poll_and_drop_behind(other, asked.acquire_with_record(Some("k".into()))).await
            }
            _ => self.poll_and_drop(lock_request(store).min_replicas(1).acquire()).await,
        }
    }
}

trait AssertShutdown: Sized {
    async fn assert_shutdown_of(self, other: &Store) -> Self;
}

impl AssertShutdown for bool {
    async fn assert_shutdown_of(self, other: &Store) -> Self {
        assert!(other.shutdown(20 * SECOND).await, "another process gives back too");
        self
    }
}
