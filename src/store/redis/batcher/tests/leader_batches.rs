//! Callers that send queued submitted calls in their own batch.

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

/// Submits a call, and polls a second one that leads the batch of both.
fn submit_then_lead(batcher: &Arc<CallBatcher<ScriptedTransport>>) -> (BoxedCall, BoxedCall) {
    let submitted = batcher.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    (Box::pin(submitted), polled_call(batcher, 2))
}

#[tokio::test(start_paused = true)]
async fn caller_sends_submitted_call_in_its_own_batch() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let (submitted, leader) = submit_then_lead(&batcher);
    assert_eq!(transport.sent_batches(), [vec![1, 2]]);
    run_ready_tasks().await;
    // The lane task has nothing to do, and later calls are not sent ahead of the batch.
    let third = polled_call(&batcher, 3);
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches(), [vec![1, 2]]);
    transport.allow_replies(2);
    assert_eq!(
        (reply_of_first_attempt(leader).await, reply_of_first_attempt(submitted).await),
        (2, 1)
    );
    assert_eq!(reply_of_first_attempt(third).await, 3);
    assert_eq!(transport.sent_batches(), [vec![1, 2], vec![3]]);
}

/// A call that follows a release in the background would otherwise take two round trips.
#[tokio::test(start_paused = true)]
async fn call_is_sent_at_once_while_detached_call_is_in_flight() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let submitted = batcher.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches(), [vec![1]], "it is under way, and not back");
    let second = polled_call(&batcher, 2);
    assert_eq!(transport.sent_batches(), [vec![1], vec![2]], "it goes at once, behind it");
    // A caller waits for this batch, so later calls queue behind it, submitted ones too.
    let third = polled_call(&batcher, 3);
    let fourth = batcher.submit(4, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches(), [vec![1], vec![2]]);
    transport.allow_replies(3);
    assert_eq!((reply_of_first_attempt(second).await, reply_of_first_attempt(third).await), (2, 3));
    assert_eq!((submitted.await.unwrap().first, fourth.await.unwrap().first), (1, 4));
    assert_eq!(transport.sent_batches(), [vec![1], vec![2], vec![3, 4]]);
}

#[tokio::test(start_paused = true)]
async fn submitted_call_is_resent_after_leader_is_dropped() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let (submitted, leader) = submit_then_lead(&batcher);
    let third = polled_call(&batcher, 3);
    drop(leader);
    run_ready_tasks().await;
    // In order, and without the dropped leader.
    assert_eq!(transport.sent_batches(), [vec![1, 2], vec![1, 3]]);
    transport.allow_replies(2);
    assert_eq!(submitted.await.unwrap().attempts, 2);
    assert_eq!(reply_of_first_attempt(third).await, 3);
}

#[tokio::test(start_paused = true)]
async fn submitted_call_and_leader_are_resent_after_fault() {
    for fault in
        [|| BatchFault::NoScript, || BatchFault::NotExecuted, || BatchFault::ConnectionLost]
    {
        let (batcher, transport) = ScriptedTransport::new_batcher();
        transport.push_fault(fault());
        let (submitted, leader) = submit_then_lead(&batcher);
        transport.allow_replies(4);
        let (leader, submitted) = (leader.await.unwrap(), submitted.await.unwrap());
        assert_eq!((submitted.first, leader.first), (1, 2));
        assert_eq!(transport.sent_batches()[..2], [vec![1, 2], vec![1, 2]]);
    }
}

#[tokio::test(start_paused = true)]
async fn leader_times_out_at_its_own_deadline() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let submitted =
        batcher.submit(1, Instant::now() + CALL_TIMEOUT * 2).expect("there is a runtime");
    let leader = polled_call(&batcher, 2);
    let since = Instant::now();
    assert_eq!(leader.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(since.elapsed(), CALL_TIMEOUT);
    // The submitted call has a later deadline, and is sent again.
    transport.allow_replies(2);
    assert_eq!(submitted.await.unwrap().first, 1);
}

/// Sent by a leader, they would get no reply while its future is not polled.
#[tokio::test(start_paused = true)]
async fn queued_callers_are_sent_by_lane_task_not_by_leader() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let submitted = batcher.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    transport.set_disconnected(true);
    let second = polled_call(&batcher, 2);
    transport.set_disconnected(false);
    let third = polled_call(&batcher, 3);
    assert!(transport.sent_batches().is_empty());
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches(), [vec![1, 2, 3]]);
    transport.allow_replies(1);
    assert_eq!((reply_of_first_attempt(second).await, reply_of_first_attempt(third).await), (2, 3));
    submitted.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_connection_leader_and_submitted_call_fail() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    transport.set_disconnected(true);
    let submitted = batcher.submit(1, Instant::now() + CALL_TIMEOUT).expect("there is a runtime");
    let mut leader = start_call(&batcher, 2);
    assert!(poll_once(&mut leader).is_none());
    assert_eq!(leader.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(submitted.await.is_err());
    assert!(transport.sent_batches().is_empty());
}
