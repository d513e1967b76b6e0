//! Lock sets: several locks of one owner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{SECOND, expect_busy, lock_gate::enter_gate, revoke_lease};
use crate::{
    gate::{
        Gate as _, GateRequest as _, KeySource, LeaveAction, ServiceOutcome, Verdict,
        fake_request::FakeGateRequest,
    },
    key::Key,
    lock::{
        AcquireError, HeldLocks, LockBusy, LockLayer, LockSet, ReleaseStatus,
        gate::AdmittedRequestLocks,
    },
    outage::LockOutage,
    store::{BackendFault, LockLoss, Store, faulty_store},
};

fn lock_set_gate(store: &Store) -> LockLayer<()> {
    let names = ["b", "a", "b"].map(str::to_owned).to_vec();
    LockLayer::by(KeySource::functions(move |()| names.clone())).store(store)
}

#[track_caller]
fn expect_set_busy(outcome: Result<LockSet, AcquireError>) -> LockBusy {
    match outcome {
        Err(AcquireError::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    }
}

async fn is_free(store: &Store, key: &str) -> bool {
    match store.as_another_process().lock(key).acquire().await {
        Ok(guard) => guard.release().await == ReleaseStatus::Released,
        Err(_) => false,
    }
}

/// Asserts that these locks are free after a shutdown.
async fn assert_all_free(store: &Store, keys: &[&str]) {
    assert!(store.shutdown(SECOND).await, "a lock or a queue entry is left");
    let set = store.as_another_process().locks(keys.iter().copied()).acquire().await;
    set.expect("all are free").release().await;
}

#[tokio::test(start_paused = true)]
async fn extend_reports_a_lock_that_was_not_extended() {
    let (store, faults) = faulty_store();
    let set = store.locks(["a", "b"]).fixed_lease(2 * SECOND).acquire().await.unwrap();
    assert!(set.extend(20 * SECOND).await.unwrap());
    assert!(set.remaining() > 15 * SECOND, "{:?}", set.remaining());
    faults.set("renew", BackendFault::Unavailable, 1);
    assert!(set.extend(25 * SECOND).await.is_err(), "one could not be asked for");
    assert!(set.remaining() > 15 * SECOND, "{:?}", set.remaining());
    let expired = store.locks(["c", "d"]).fixed_lease(SECOND).acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert!(!expired.extend(20 * SECOND).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn lock_set_is_acquired_all_or_none() {
    let store = Store::memory();
    let set = store.locks(["b", "a", "b", "c"]).acquire().await.unwrap();
    let names: Vec<_> = set.fences().into_iter().map(|(key, _)| key).collect();
    assert_eq!(names, ["b", "a", "c"].map(Key::from), "as they were named, each once");
    assert!(set.remaining() > 5 * SECOND);
    for key in ["a", "b", "c"] {
        expect_busy(store.lock(key).acquire().await);
    }
    assert_eq!(set.release().await, ReleaseStatus::Released);
    let b = store.lock("b").acquire().await.unwrap();
    expect_set_busy(store.locks(["a", "b", "c"]).acquire().await);
    assert!(
        is_free(&store, "a").await && is_free(&store, "c").await,
        "the earlier locks are released"
    );
    b.release().await;
    assert_all_free(&store, &["a", "b", "c"]).await;
    let none = store.locks(Vec::<Key>::new()).acquire().await.unwrap();
    assert_eq!(none.fences(), []);
    assert_eq!(none.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn waits_of_a_lock_set_share_one_deadline() {
    let store = Store::memory();
    let keys = ["a", "b"];
    // Half of the wait has passed when the first lock, in the store's order, is free.
    let mut held = Vec::new();
    for key in keys {
        held.push(store.as_another_process().lock(key).acquire().await.unwrap());
    }
    let (waiter, started) = (store.locks(keys).wait(4 * SECOND).acquire(), Instant::now());
    let waiter = crate::store::spawn(waiter);
    tokio::time::sleep(2 * SECOND).await;
    held.sort_by_key(|guard| (guard.key().shard(), guard.key().clone()));
    let first = held.remove(0);
    let first_key = first.key().clone();
    first.release().await;
    tokio::time::sleep(SECOND).await;
    expect_busy(store.as_another_process().lock(first_key).acquire().await);
    let busy = expect_set_busy(waiter.await.unwrap());
    assert_eq!(started.elapsed().as_secs(), 4);
    assert!(busy.waited.is_some_and(|waited| waited >= 4 * SECOND), "{busy:?}");
    held.remove(0).release().await;
    assert_all_free(&store, &keys).await;
}

#[tokio::test(start_paused = true)]
async fn lock_set_holds_nothing_between_attempts() {
    let store = Store::memory();
    let keys = ["a", "b"];
    for key in keys {
        let held = store.as_another_process().lock(key).acquire().await.unwrap();
        let waiter = crate::store::spawn(store.locks(keys).retry(3, SECOND).acquire());
        tokio::time::sleep(SECOND / 2).await;
        for other in keys {
            assert_eq!(is_free(&store, other).await, other != key);
        }
        assert!(store.shutdown(SECOND).await);
        held.release().await;
        let started = Instant::now();
        drop(waiter.await.unwrap().expect("both are free at the second attempt"));
        assert_eq!(started.elapsed(), SECOND / 2);
        assert_all_free(&store, &keys).await;
    }
    let _held = store.lock("b").acquire().await.unwrap();
    let busy = expect_set_busy(store.locks(keys).retry(3, SECOND).acquire().await);
    assert_eq!(busy.waited, Some(3 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn lock_sets_in_opposite_orders_never_deadlock() {
    let store = Store::memory();
    let inside = Arc::new([const { AtomicUsize::new(0) }; 4]);
    let mut tasks = Vec::new();
    for n in 0..64_usize {
        let store = if n % 2 == 0 { store.clone() } else { store.as_another_process() };
        let inside = Arc::clone(&inside);
        // Every pair, in both orders.
        let (from, to) = (n % 4, (n / 4 + 1 + n % 4) % 4);
        tasks.push(crate::store::spawn(async move {
            let wait = Duration::from_secs(60);
            let keys = [from, to].map(|n| format!("account {n}"));
            let set = store.locks(keys).wait(wait).acquire().await.expect("in time");
            let mut own = vec![from, to];
            own.dedup();
            for n in &own {
                assert_eq!(inside[*n].fetch_add(1, Ordering::SeqCst), 0, "two at once");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            for n in own {
                inside[n].fetch_sub(1, Ordering::SeqCst);
            }
            assert_eq!(set.release().await, ReleaseStatus::Released);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Like a single lock, a set that is known to be busy causes no call, and a full queue refuses at
/// once.
#[tokio::test(start_paused = true)]
async fn locks_known_busy_locally_are_not_requested_together() {
    let (store, faults) = faulty_store();
    let request = || store.locks(["a", "b"]).max_waiters(1).wait(60 * SECOND);
    let calls = || ["acquire_all", "acquire"].map(|step| faults.call_count(step));
    let held = request().acquire().await.unwrap();
    let waiter = crate::store::spawn(request().acquire());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let before = calls();
    assert_eq!(before[0], 1, "one call while no lock is known to be busy");
    for _ in 0..50 {
        let busy = expect_set_busy(request().acquire().await);
        assert!(busy.waited.is_some_and(|waited| waited.is_zero()), "{busy:?}");
    }
    assert_eq!(calls(), before);
    expect_set_busy(store.locks(["b", "c"]).shared().acquire().await);
    assert_eq!(calls()[0], 1);
    held.release().await;
    drop(waiter.await.unwrap().expect("the set is granted"));
    assert_all_free(&store, &["a", "b"]).await;
}

/// The remaining locks are still held. A client that receives the response may request one of them.
#[tokio::test(start_paused = true)]
async fn remaining_locks_are_released_before_the_loss_response() {
    let (store, faults) = faulty_store();
    let lock = lock_set_gate(&store);
    let Verdict::Pass(ticket) = enter_gate(&lock, &mut FakeGateRequest::new("POST")).await else {
        panic!("they are free")
    };
    let AdmittedRequestLocks::Acquired { guards: guard, .. } = &ticket.locks else {
        panic!("they are its own")
    };
    revoke_lease(&store, guard.first_lease()).await;
    lock.cancellation(&ticket).await;
    // Two releases: that of the lost lock, too, which is not awaited.
    faults.set("release", BackendFault::SlowReply(SECOND), 2);
    let started = Instant::now();
    let leave_action = lock.leave(ticket, ServiceOutcome::Stopped).await;
    assert!(matches!(leave_action, LeaveAction::Replace(_)), "{leave_action:?}");
    assert_eq!(started.elapsed(), SECOND);
    assert_all_free(&store, &["a", "b"]).await;
}

/// Polls an acquisition n times and drops it, for every n until it completes.
#[tokio::test(start_paused = true)]
async fn lock_set_acquire_dropped_at_any_await_leaves_nothing() {
    for busy in [None, Some("a"), Some("b")] {
        for polls in 0..12 {
            let store = Store::memory();
            let mut held = None;
            if let Some(busy) = busy {
                held = Some(store.as_another_process().lock(busy).acquire().await.unwrap());
            }
            let mut future = Box::pin(store.locks(["a", "b"]).wait(SECOND).acquire());
            for _ in 0..polls {
                if (&mut future).now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(future);
            // The queue task notices the drop and removes its queue entry.
            tokio::time::sleep(Duration::from_millis(5)).await;
            if let Some(held) = held {
                held.release().await;
            }
            assert_all_free(&store, &["a", "b"]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn loss_of_one_lock_is_the_loss_of_the_set() {
    let store = Store::memory();
    let set = store.locks(["a", "b"]).lease(SECOND).acquire().await.unwrap();
    revoke_lease(&store, set.first_lease()).await;
    let started = Instant::now();
    set.lost().await;
    assert!(started.elapsed() < SECOND);
    assert!(set.held_locks().loss().is_some());
    assert_eq!(set.release().await, ReleaseStatus::AlreadyLost);
    assert_all_free(&store, &["a", "b"]).await;
}

/// The store becomes unavailable between two locks: the first is released, and the policy decides.
#[tokio::test(start_paused = true)]
async fn outage_between_two_locks_follows_the_policy() {
    for (policy, passes) in [(LockOutage::Refuse, false), (LockOutage::Admit, true)] {
        let (store, faults) = faulty_store();
        let lock = lock_set_gate(&store).on_outage(policy);
        // The first call succeeds late.
        faults.set("acquire", BackendFault::SlowReply(SECOND / 10), 1);
        let entering = crate::store::spawn({
            let lock = lock.clone();
            async move { enter_gate(&lock, &mut FakeGateRequest::new("POST")).await }
        });
        tokio::time::sleep(SECOND / 20).await;
        faults.set("acquire", BackendFault::Unavailable, 1);
        match entering.await.unwrap() {
            Verdict::Pass(ticket) => {
                let mut view = FakeGateRequest::new("POST");
                lock.annotate_request(&ticket, &mut view);
                let all = view.extension::<HeldLocks>().unwrap();
                assert!(passes && all.len() == 2 && all.fences().count() == 0);
            }
            Verdict::Answer(reply) => assert!(!passes && reply.status == 503),
            Verdict::Busy(..) => panic!("it is an outage"),
        }
        assert_all_free(&store, &["a", "b"]).await;
    }
}

/// A grant without the required replica acknowledgements is refused.
#[tokio::test(start_paused = true)]
async fn unconfirmed_replica_refuses_the_lock_set() {
    let (store, faults) = faulty_store();
    faults.set("replicated", BackendFault::Unavailable, 1);
    let refused = store.locks(["a", "b"]).min_replicas(1).acquire().await;
    assert!(matches!(refused, Err(AcquireError::Fault(_))), "{refused:?}");
    assert_all_free(&store, &["a", "b"]).await;
}

/// `loss` returns at once the value that `lost` waits for.
#[tokio::test(start_paused = true)]
async fn loss_can_be_read_without_waiting() {
    let store = Store::memory();
    let one = store.lock("one").fixed_lease(SECOND).acquire().await.unwrap();
    let set = store.locks(["a", "b"]).fixed_lease(SECOND).acquire().await.unwrap();
    assert_eq!((one.loss(), set.loss()), (None, None));
    let (of_one, of_set) = (one.lost().await, set.lost().await);
    assert_eq!((one.loss(), set.loss()), (Some(of_one), Some(of_set)));
    assert_eq!(of_set, LockLoss::HeldTooLong);
}
