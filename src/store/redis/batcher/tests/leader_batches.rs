//! Callers who take along what stands in the queue.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    BoxedCall, CALL_TIMEOUT, ScriptedTransport, poll_once, polled_call, reply_of_first_attempt,
    run_ready_tasks, start_call,
};
use crate::{
    error::ErrorKind,
    store::redis::batcher::{BatchFault, CallBatcher},
};

/// A step that is only put, and a caller who leads it.
fn submit_then_lead(combiner: &Arc<CallBatcher<ScriptedTransport>>) -> (BoxedCall, BoxedCall) {
    let put = combiner.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    (Box::pin(put), polled_call(combiner, 2))
}

#[tokio::test(start_paused = true)]
async fn caller_sends_submitted_call_in_its_own_batch() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let (put, led) = submit_then_lead(&combiner);
    // No other task has run.
    assert_eq!(field.sent_batches(), [vec![1, 2]]);
    run_ready_tasks().await;
    // Nor has the one that was called for them anything to do, nor do others go ahead.
    let third = polled_call(&combiner, 3);
    run_ready_tasks().await;
    assert_eq!(field.sent_batches(), [vec![1, 2]]);
    field.allow_replies(2);
    assert_eq!((reply_of_first_attempt(led).await, reply_of_first_attempt(put).await), (2, 1));
    assert_eq!(reply_of_first_attempt(third).await, 3);
    assert_eq!(field.sent_batches(), [vec![1, 2], vec![3]]);
}

/// Behind a lock that was given back in the background the next call would take two ways instead of one.
#[tokio::test(start_paused = true)]
async fn call_is_sent_at_once_while_detached_call_is_in_flight() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let put = combiner.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    run_ready_tasks().await;
    assert_eq!(field.sent_batches(), [vec![1]], "it is under way, and not back");
    let second = polled_call(&combiner, 2);
    assert_eq!(field.sent_batches(), [vec![1], vec![2]], "it goes at once, behind it");
    // For this one somebody waits: the others have company, and so has what is put.
    let third = polled_call(&combiner, 3);
    let fourth = combiner.submit(4, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    run_ready_tasks().await;
    assert_eq!(field.sent_batches(), [vec![1], vec![2]]);
    field.allow_replies(3);
    assert_eq!((reply_of_first_attempt(second).await, reply_of_first_attempt(third).await), (2, 3));
    assert_eq!((put.await.unwrap().first, fourth.await.unwrap().first), (1, 4));
    assert_eq!(field.sent_batches(), [vec![1], vec![2], vec![3, 4]]);
}

#[tokio::test(start_paused = true)]
async fn submitted_call_is_resent_after_leader_is_dropped() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let (put, led) = submit_then_lead(&combiner);
    let third = polled_call(&combiner, 3);
    drop(led);
    run_ready_tasks().await;
    // In their order; and nothing for one who is gone.
    assert_eq!(field.sent_batches(), [vec![1, 2], vec![1, 3]]);
    field.allow_replies(2);
    assert_eq!(put.await.unwrap().attempts, 2);
    assert_eq!(reply_of_first_attempt(third).await, 3);
}

#[tokio::test(start_paused = true)]
async fn submitted_call_and_leader_are_resent_after_fault() {
    for fault in
        [|| BatchFault::NoScript, || BatchFault::NotExecuted, || BatchFault::ConnectionLost]
    {
        let (combiner, field) = ScriptedTransport::new_batcher();
        field.push_fault(fault());
        let (put, led) = submit_then_lead(&combiner);
        field.allow_replies(4);
        let (led, put) = (led.await.unwrap(), put.await.unwrap());
        assert_eq!((put.first, led.first), (1, 2));
        assert_eq!(field.sent_batches()[..2], [vec![1, 2], vec![1, 2]]);
    }
}

#[tokio::test(start_paused = true)]
async fn leader_times_out_at_its_own_deadline() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let put = combiner.submit(1, Instant::now() + CALL_TIMEOUT * 2).expect("there is a runtime");
    let led = polled_call(&combiner, 2);
    let since = Instant::now();
    assert_eq!(led.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(since.elapsed(), CALL_TIMEOUT);
    // The other one has more time, and another flight.
    field.allow_replies(2);
    assert_eq!(put.await.unwrap().first, 1);
}

/// They would hear nothing while the leader is not polled.
#[tokio::test(start_paused = true)]
async fn queued_callers_are_sent_by_lane_task_not_by_leader() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let put = combiner.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    field.set_disconnected(true);
    let second = polled_call(&combiner, 2);
    field.set_disconnected(false);
    let third = polled_call(&combiner, 3);
    assert!(field.sent_batches().is_empty());
    run_ready_tasks().await;
    assert_eq!(field.sent_batches(), [vec![1, 2, 3]]);
    field.allow_replies(1);
    assert_eq!((reply_of_first_attempt(second).await, reply_of_first_attempt(third).await), (2, 3));
    put.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_connection_leader_and_submitted_call_fail() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    field.set_disconnected(true);
    let put = combiner.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    let mut led = start_call(&combiner, 2);
    assert!(poll_once(&mut led).is_none());
    assert_eq!(led.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(put.await.is_err());
    assert!(field.sent_batches().is_empty());
}
