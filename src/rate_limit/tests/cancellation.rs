//! Futures dropped at each of their await points: charges of a request that was not admitted are
//! refunded, except that of the call in flight.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use super::{SECOND, named_policy, per_minute, remaining_in_store};
use crate::{
    Policy,
    store::{BackendFault, Store, faulty_store},
};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls a future `n` times with pauses, then drops it. Returns its outcome if it completed before.
async fn poll_then_drop<T>(n: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..n {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = polled {
            return Some(outcome);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    None
}

fn three_policies() -> [Policy; 3] {
    [
        named_policy("a", per_minute(10)),
        named_policy("b", per_minute(10).sliding()),
        named_policy("c", per_minute(2).gcra()),
    ]
}

/// Drops a check of three slow calls after `n` polls; the last policy may refuse. Returns whether
/// the check completed, and the units charged by it.
async fn spent_after_drop(n: usize, refuses: bool) -> (bool, [u64; 3]) {
    let (store, faults) = faulty_store();
    let [a, b, c] = three_policies();
    if refuses {
        let spent = store.as_another_process().rate_limiter(c.clone()).check("z", 2).await;
        assert!(spent.unwrap().is_admitted());
    }
    faults.set("charge", BackendFault::SlowReply(POLL_INTERVAL / 2), 100);
    faults.set("settle_charge", BackendFault::SlowReply(POLL_INTERVAL / 2), 100);
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.clone());
    let keys = [("x", 1), ("y", 1), ("z", 1)];
    let done = poll_then_drop(n, limit.check_each(keys)).await;
    assert!(store.shutdown(SECOND).await, "something is under way still");
    faults.set("charge", BackendFault::Unavailable, 0);
    let done = match done {
        None => false,
        Some(decision) => {
            assert_eq!(decision.unwrap().is_admitted(), !refuses);
            true
        }
    };
    let spent_before = if refuses { 2 } else { 0 };
    let spent = [
        10 - remaining_in_store(&store, &a, "x").await,
        10 - remaining_in_store(&store, &b, "y").await,
        2 - remaining_in_store(&store, &c, "z").await - spent_before,
    ];
    (done, spent)
}

#[tokio::test(start_paused = true)]
async fn dropped_check_refunds_all_completed_charges() {
    for n in 1.. {
        let (done, spent) = spent_after_drop(n, false).await;
        if done {
            assert_eq!(spent, [1, 1, 1]);
            assert!(n > 3, "there are three calls to be waited for");
            break;
        }
        // Only the charge of the call in flight can be left.
        let in_flight = (0..3).map(|at| u64::from(at == n - 1)).collect::<Vec<_>>();
        assert_eq!(spent[..], in_flight, "dropped after {n} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_refusal_refunds_all_completed_charges() {
    for n in 1.. {
        let (done, spent) = spent_after_drop(n, true).await;
        if done {
            assert_eq!(spent, [0, 0, 0]);
            assert!(n > 3, "the check awaits its rollback");
            break;
        }
        let in_flight = (0..3).map(|at| u64::from(at == n - 1 && at < 2)).collect::<Vec<_>>();
        assert_eq!(spent[..], in_flight, "dropped after {n} polls");
    }
}

/// Shadow policies are charged after the others have admitted the request. A request dropped then
/// was not admitted.
#[tokio::test(start_paused = true)]
async fn check_dropped_in_shadow_call_refunds_other_keys() {
    let (store, faults) = faulty_store();
    let [a, b, c] = three_policies();
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.shadow());
    faults.set("charge", BackendFault::SlowReply(POLL_INTERVAL / 2), 100);
    let keys = [("x", 1), ("y", 1), ("z", 1)];
    assert!(poll_then_drop(3, limit.check_each(keys)).await.is_none());
    assert!(store.shutdown(SECOND).await);
    faults.set("charge", BackendFault::Unavailable, 0);
    assert_eq!(
        (remaining_in_store(&store, &a, "x").await, remaining_in_store(&store, &b, "y").await),
        (10, 10)
    );
}

/// The refund is also made if the future is dropped on a thread without a runtime.
#[tokio::test(start_paused = true)]
async fn check_dropped_outside_a_runtime_is_refunded() {
    let (store, faults) = faulty_store();
    let [a, b, _] = three_policies();
    let limit = store.rate_limiter(a.clone()).and(b);
    faults.set("charge", BackendFault::SlowReply(POLL_INTERVAL / 2), 100);
    let mut check = Box::pin(async move { limit.check_each([("x", 1), ("y", 1)]).await });
    for _ in 0..2 {
        assert!(poll_fn(|cx| Poll::Ready(check.as_mut().poll(cx))).await.is_pending());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    std::thread::spawn(move || drop(check)).join().unwrap();
    assert!(store.shutdown(SECOND).await);
    faults.set("charge", BackendFault::Unavailable, 0);
    assert_eq!(remaining_in_store(&store, &a, "x").await, 10);
}

#[test]
fn limiter_works_after_its_first_runtime_ended() {
    let store = Store::memory();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = store
        .rate_limiter(per_minute(10))
        .and(named_policy("leased", per_minute(10)).quota_lease(5));
    for _ in 0..2 {
        let runtime = runtime();
        assert!(runtime.block_on(limit.check("x", 1)).unwrap().is_admitted());
    }
}

#[tokio::test(start_paused = true)]
async fn single_key_check_dropped_in_shadow_call_is_refunded() {
    let (store, faults) = faulty_store();
    let [a, b, _] = three_policies();
    let limit = store.rate_limiter(a.clone()).and(b.shadow());
    faults.set("charge", BackendFault::SlowReply(POLL_INTERVAL / 2), 100);
    assert!(poll_then_drop(2, limit.check("x", 1)).await.is_none());
    assert!(store.shutdown(SECOND).await);
    faults.set("charge", BackendFault::Unavailable, 0);
    assert_eq!(remaining_in_store(&store, &a, "x").await, 10);
}

/// The reset is carried out although its reply is not awaited.
#[tokio::test(start_paused = true)]
async fn dropped_reset_clears_the_refusal_cache() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(1));
    for admitted in [true, false] {
        assert_eq!(limit.check("x", 1).await.unwrap().is_admitted(), admitted);
    }
    faults.set("reset_charges", BackendFault::SlowReply(POLL_INTERVAL), 1);
    assert!(poll_then_drop(1, limit.reset("x")).await.is_none());
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
}
