//! Futures that are dropped at each of their await points: what was charged for a request that does not go
//! in is given back, save by the call that is under way then.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use super::{SECOND, left, minute, named};
use crate::{
    Policy,
    store::{Fault, Store, faulty},
};

const BETWEEN: Duration = Duration::from_millis(10);

/// Polls `n` times, with all that is to be done in between, then drops; the outcome if it was done before.
async fn poll_then_drop<T>(n: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..n {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = polled {
            return Some(outcome);
        }
        tokio::time::sleep(BETWEEN).await;
    }
    None
}

fn policies() -> [Policy; 3] {
    [named("a", minute(10)), named("b", minute(10).sliding()), named("c", minute(2).gcra())]
}

/// Three tags, each call slow; the last policy refuses or not. What was charged of each.
async fn dropped_after(n: usize, refuses: bool) -> (bool, [u64; 3]) {
    let (store, faults) = faulty();
    let [a, b, c] = policies();
    if refuses {
        let spent = store.as_another_process().rate_limiter(c.clone()).check("z", 2).await;
        assert!(spent.unwrap().is_admitted());
    }
    faults.set("charge", Fault::Slow(BETWEEN / 2), 100);
    faults.set("settle_charge", Fault::Slow(BETWEEN / 2), 100);
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.clone());
    let keys = [("x", 1), ("y", 1), ("z", 1)];
    let done = poll_then_drop(n, limit.check_each(keys)).await;
    assert!(store.shutdown(SECOND).await, "something is under way still");
    faults.set("charge", Fault::Away, 0);
    let done = match done {
        None => false,
        Some(decision) => {
            assert_eq!(decision.unwrap().is_admitted(), !refuses);
            true
        }
    };
    let spent_before = if refuses { 2 } else { 0 };
    let spent = [
        10 - left(&store, &a, "x").await,
        10 - left(&store, &b, "y").await,
        2 - left(&store, &c, "z").await - spent_before,
    ];
    (done, spent)
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_dropped_gives_back_what_was_charged() {
    for n in 1.. {
        let (done, spent) = dropped_after(n, false).await;
        if done {
            assert_eq!(spent, [1, 1, 1]);
            assert!(n > 3, "there are three calls to be waited for");
            break;
        }
        // The call that was under way when it was dropped is all that can be left.
        let under_way = (0..3).map(|at| u64::from(at == n - 1)).collect::<Vec<_>>();
        assert_eq!(spent[..], under_way, "dropped after {n} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_dropped_gives_back_what_was_charged() {
    for n in 1.. {
        let (done, spent) = dropped_after(n, true).await;
        if done {
            assert_eq!(spent, [0, 0, 0]);
            assert!(n > 3, "what is given back is waited for");
            break;
        }
        let under_way = (0..3).map(|at| u64::from(at == n - 1 && at < 2)).collect::<Vec<_>>();
        assert_eq!(spent[..], under_way, "dropped after {n} polls");
    }
}

/// A shadow policy is asked when the others have let the request in: dropped then, it has not gone in.
#[tokio::test(start_paused = true)]
async fn a_check_that_is_dropped_in_the_shadow_is_not_charged_if_it_can_be_helped() {
    let (store, faults) = faulty();
    let [a, b, c] = policies();
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.shadow());
    faults.set("charge", Fault::Slow(BETWEEN / 2), 100);
    let keys = [("x", 1), ("y", 1), ("z", 1)];
    assert!(poll_then_drop(3, limit.check_each(keys)).await.is_none());
    assert!(store.shutdown(SECOND).await);
    faults.set("charge", Fault::Away, 0);
    assert_eq!((left(&store, &a, "x").await, left(&store, &b, "y").await), (10, 10));
}

/// Nothing is lost when futures are dropped on a thread without a runtime, either.
#[tokio::test(start_paused = true)]
async fn a_check_dropped_on_a_plain_thread_gives_back() {
    let (store, faults) = faulty();
    let [a, b, _] = policies();
    let limit = store.rate_limiter(a.clone()).and(b);
    faults.set("charge", Fault::Slow(BETWEEN / 2), 100);
    let mut check = Box::pin(async move { limit.check_each([("x", 1), ("y", 1)]).await });
    for _ in 0..2 {
        assert!(poll_fn(|cx| Poll::Ready(check.as_mut().poll(cx))).await.is_pending());
        tokio::time::sleep(BETWEEN).await;
    }
    std::thread::spawn(move || drop(check)).join().unwrap();
    assert!(store.shutdown(SECOND).await);
    faults.set("charge", Fault::Away, 0);
    assert_eq!(left(&store, &a, "x").await, 10);
}

#[test]
fn a_limiter_works_where_its_runtime_has_ended() {
    let store = Store::memory();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = store.rate_limiter(minute(10)).and(named("leased", minute(10)).quota_lease(5));
    for _ in 0..2 {
        let runtime = runtime();
        assert!(runtime.block_on(limit.check("x", 1)).unwrap().is_admitted());
    }
}

#[tokio::test(start_paused = true)]
async fn one_key_that_is_dropped_in_the_shadow_is_given_back_too() {
    let (store, faults) = faulty();
    let [a, b, _] = policies();
    let limit = store.rate_limiter(a.clone()).and(b.shadow());
    faults.set("charge", Fault::Slow(BETWEEN / 2), 100);
    assert!(poll_then_drop(2, limit.check("x", 1)).await.is_none());
    assert!(store.shutdown(SECOND).await);
    faults.set("charge", Fault::Away, 0);
    assert_eq!(left(&store, &a, "x").await, 10);
}

/// It is done, although nobody waits for the answer.
#[tokio::test(start_paused = true)]
async fn a_reset_that_is_dropped_is_not_refused_from_memory() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(1));
    for admitted in [true, false] {
        assert_eq!(limit.check("x", 1).await.unwrap().is_admitted(), admitted);
    }
    faults.set("reset_charges", Fault::Slow(BETWEEN), 1);
    assert!(poll_then_drop(1, limit.reset("x")).await.is_none());
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
}
