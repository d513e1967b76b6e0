//! Locks that rest in this process, and requests that have a record to look up.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    SECOND, busy,
    seam::{enter, gate},
};
use crate::{
    defer::DeferGate,
    gate::{Gate as _, Head, Outcome, Parting, Verdict, fake::FakeView},
    lock::{LockGate, LockRequest, LockTicket, Released, answer::Answer},
    store::{Fault, Store, faulty},
};

/// A lock that would rest for as long as any test takes.
fn lasting(store: &Store) -> LockRequest {
    store.lock("x").linger(60 * SECOND).hand_over(16, 60 * SECOND)
}

async fn rests(store: &Store) {
    assert_eq!(lasting(store).acquire().await.unwrap().release().await, Released::Released);
    busy(store.as_another_process().lock("x").acquire().await);
}

/// Requests under a record find a lock of their own process that rests: on its terms, on others, and in another mode.
pub(crate) async fn are_had_under_a_record(store: &Store) {
    let asked = [
        lasting(store),
        lasting(store).lease(5 * SECOND),
        store.lock("x"),
        store.lock("x").shared(),
    ];
    let record: Arc<str> = "k".into();
    for (n, request) in asked.into_iter().enumerate() {
        for wait in [None, Some(SECOND)] {
            rests(store).await;
            let request = wait.map_or(request.clone(), |wait| request.clone().wait(wait));
            let Ok(Answer::Granted(guard)) = request.ask(Some(Arc::clone(&record))).await else {
                panic!("{n}, {wait:?}: nobody has it");
            };
            assert!(!guard.remaining().is_zero());
            busy(store.as_another_process().lock("x").acquire().await);
            assert_eq!(guard.release().await, Released::Released);
            // What rests now goes back before the next one's turn.
            drop(store.lock("x").lease(7 * SECOND).acquire().await.expect("it is given back"));
        }
    }
}

/// What a guard has told others of it was true until it was released.
#[tokio::test(start_paused = true)]
async fn who_has_a_copy_has_nothing_of_a_lock_that_rests() {
    let store = Store::memory();
    let guard = lasting(&store).acquire().await.unwrap();
    let copy = guard.held();
    assert!(!copy.remaining().is_zero());
    assert_eq!(guard.release().await, Released::Released);
    busy(store.as_another_process().lock("x").acquire().await);
    assert!(copy.remaining().is_zero());
    let again = lasting(&store).acquire().await.unwrap();
    assert!(copy.remaining().is_zero() && !again.remaining().is_zero());
    drop(again);
    // The rest ends, and nothing of that is a loss.
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(copy.loss(), None);
    drop(store.as_another_process().lock("x").acquire().await.expect("it rests no more"));
}

#[test]
fn a_rest_ends_with_the_runtime_that_was_to_end_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Store::memory();
    let first = runtime();
    first.block_on(rests(&store));
    drop(first);
    runtime().block_on(async {
        // Whatever this store does next, its agent goes on here.
        drop(store.lock("y").acquire().await.unwrap());
        let other = store.as_another_process().lock("x").retry(20, SECOND / 10).acquire().await;
        drop(other.expect("it rests no more"));
    });
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_rests_is_free_for_requests_with_a_record() {
    are_had_under_a_record(&Store::memory()).await;
}

fn keyed() -> FakeView {
    let mut view = FakeView::new("POST");
    view.headers.push(("idempotency-key", "\"k\""));
    view
}

/// What the lock says of a request under deferral, and the answer of that if it was busy.
async fn comes(lock: &LockGate<()>) -> (Verdict<LockTicket>, Option<u16>) {
    let (defer, mut view) = (DeferGate::<()>::new(), keyed());
    let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
        panic!("deferral lets everything in");
    };
    defer.show(&deferral, &mut view);
    let entered = enter(lock, &mut view).await;
    let Verdict::Busy(reply, _) = &entered else { return (entered, None) };
    let parting = defer.leave(deferral, Outcome::Answered(reply.status)).await;
    let Parting::Accept { parked, .. } = parting else { panic!("it was busy") };
    let head = Head::new("POST", "/orders/7", Vec::new(), None);
    let reply = defer.accept(parked, head, Some(Bytes::new())).await.expect("there is room");
    (entered, Some(reply.status))
}

/// LIVENESS: it was deferred for the hold of its own process, which nobody used.
#[tokio::test(start_paused = true)]
async fn a_request_with_a_key_runs_at_once_while_its_lock_rests() {
    let store = Store::memory();
    let lock = gate(&store).linger(Duration::from_millis(5));
    let Verdict::Pass(ticket) = enter(&lock, &mut FakeView::new("POST")).await else {
        panic!("it is free");
    };
    lock.leave(ticket, Outcome::Answered(200)).await;
    busy(store.as_another_process().lock("x").acquire().await);
    let (entered, _) = comes(&lock).await;
    assert!(matches!(entered, Verdict::Pass(_)), "nobody has it");
}

/// SAFETY: the record has its say before a lock that rests is used, as before one that is free.
#[tokio::test(start_paused = true)]
async fn a_retry_finds_its_job_and_does_not_run_while_its_lock_rests() {
    let store = Store::memory();
    for lock in [gate(&store).linger(SECOND), gate(&store).linger(SECOND).wait(SECOND)] {
        let held = store.lock("x").acquire().await.unwrap();
        assert_eq!(comes(&lock).await.1, Some(202));
        held.release().await;
        // (No worker is there, so nobody has to wait for the job.)
        store.lock("x").linger(SECOND).acquire().await.unwrap().release().await;
        busy(store.as_another_process().lock("x").acquire().await);
        assert_eq!(comes(&lock).await.1, Some(202), "the job of the first, and no second run");
        assert!(store.shutdown(2 * SECOND).await);
        drop(store.as_another_process().lock("x").acquire().await.expect("nothing is kept"));
    }
}

/// As whatever is given back before an answer: whoever sees that may ask for the lock at once.
#[tokio::test(start_paused = true)]
async fn a_retry_that_finds_its_job_has_given_the_lock_back() {
    let (store, faults) = faulty();
    let held = store.lock("x").acquire().await.unwrap();
    assert_eq!(comes(&gate(&store)).await.1, Some(202));
    held.release().await;
    store.lock("x").linger(SECOND).acquire().await.unwrap().release().await;
    faults.set("release", Fault::Slow(SECOND), 1);
    let asked = Instant::now();
    assert_eq!(comes(&gate(&store)).await.1, Some(202));
    assert_eq!((asked.elapsed(), faults.left("release")), (SECOND, 0));
}
