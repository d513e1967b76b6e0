//! Scenarios whose futures are dropped at any of their await points.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures_util::future::join_all;

use crate::{
    lock::{AcquireError, LockGuard, LockRequest, tests::SECOND},
    store::Store,
};

/// Phase of a drop, for an observer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DropPhase {
    /// The future will be polled for the first time next.
    BeforeFirstPoll,
    /// The future has just been dropped.
    Dropped,
}

/// Polls a future `n` times with pauses, then drops it. Returns true if it completed before.
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

/// Call whose future is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DropScenario {
    /// Acquire of a free lock, without or with a wait.
    TryAcquire,
    WaitWhileFree,
    /// Wait for a lock that another process releases meanwhile.
    WaitForOtherProcess,
    /// Wait for a lock that this process releases meanwhile.
    WaitForSameProcess,
    SharedAcquire,
    PermitAcquire,
    /// Release to the store, or handover to a local waiter.
    Release,
    Handover,
    Downgrade,
    /// Acquire of two locks, while another process releases the first one; release of both.
    AcquireLockSet,
    ReleaseLockSet,
    /// Retries for a lock that another process releases meanwhile.
    Retry,
    /// Wait for a lock of another process, with an idempotency record.
    AcquireWithRecord,
    /// Readers of one queue entry, granted together.
    ReaderBatch,
    /// Wait for replica acknowledgements, which no replica sends if the server has none.
    AwaitReplicas,
}

/// Scenarios that take no time on a real server.
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

/// Scenarios that take longer.
pub(crate) const SLOW_SCENARIOS: [DropScenario; 6] = [
    DropScenario::AcquireLockSet,
    DropScenario::ReleaseLockSet,
    DropScenario::Retry,
    DropScenario::AcquireWithRecord,
    DropScenario::ReaderBatch,
    DropScenario::AwaitReplicas,
];

/// Drops the scenario's future after `n` polls. Returns true if it completed before.
pub(crate) async fn drop_after(
    n: usize,
    scenario: DropScenario,
    store: &Store,
    between: Duration,
) -> bool {
    drop_after_with_observer(n, scenario, store, between, &|_| ()).await
}

/// Like `drop_after`, with an observer of the phases.
pub(crate) async fn drop_after_with_observer(
    n: usize,
    scenario: DropScenario,
    store: &Store,
    between: Duration,
    observer: &dyn Fn(DropPhase),
) -> bool {
    let other = store.as_another_process();
    let run = DropRun { poll_count: n, store, other: &other, between, on_phase: observer };
    let done = match scenario {
        DropScenario::TryAcquire
        | DropScenario::WaitWhileFree
        | DropScenario::WaitForOtherProcess
        | DropScenario::WaitForSameProcess => run.drop_acquire(scenario).await,
        DropScenario::SharedAcquire | DropScenario::PermitAcquire | DropScenario::ReaderBatch => {
            run.drop_shared_acquire(scenario).await
        }
        DropScenario::Release | DropScenario::Handover | DropScenario::Downgrade => {
            run.drop_release(scenario).await
        }
        DropScenario::AcquireLockSet | DropScenario::ReleaseLockSet => {
            run.drop_lock_set(scenario).await
        }
        DropScenario::Retry | DropScenario::AcquireWithRecord | DropScenario::AwaitReplicas => {
            run.drop_other_call(scenario).await
        }
    };
    done.assert_shutdown_of(&other).await
}

/// Run of a scenario: when to drop its future, and on which stores.
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

    /// Like `poll_and_drop`, while `holder` holds the lock and releases it meanwhile.
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

    async fn drop_acquire(&self, scenario: DropScenario) -> bool {
        let Self { store, other, .. } = self;
        match scenario {
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

    async fn drop_shared_acquire(&self, scenario: DropScenario) -> bool {
        let Self { store, other, .. } = self;
        match scenario {
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

    async fn drop_release(&self, scenario: DropScenario) -> bool {
        let store = self.store;
        match scenario {
            DropScenario::Release => {
                let held = lock_request(store).acquire().await.expect("it is free");
                self.poll_and_drop(held.release()).await
            }
            DropScenario::Handover => {
                // In strict order, each release is a call that also acquires for the next waiter.
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

    async fn drop_lock_set(&self, scenario: DropScenario) -> bool {
        // The undo of the common call is in doubt for one lease.
        let both = self.store.locks(["x", "y"]).lease(2 * SECOND);
        if matches!(scenario, DropScenario::AcquireLockSet) {
            return self.poll_and_drop_behind(self.other, both.wait(20 * SECOND).acquire()).await;
        }
        let held = both.acquire().await.expect("both are free");
        self.poll_and_drop(held.release()).await
    }

    async fn drop_other_call(&self, scenario: DropScenario) -> bool {
        let Self { store, other, .. } = self;
        match scenario {
            DropScenario::Retry => {
                let request = lock_request(store).retry(1000, Duration::from_millis(10));
                self.poll_and_drop_behind(other, request.acquire()).await
            }
            DropScenario::AcquireWithRecord => {
                let request = lock_request(store).wait(20 * SECOND);
                self.poll_and_drop_behind(other, request.acquire_with_record(Some("k".into())))
                    .await
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
        assert!(other.shutdown(20 * SECOND).await, "the other process has undone its calls");
        self
    }
}
