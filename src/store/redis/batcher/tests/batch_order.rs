//! Order of calls, and their grouping into batches.

use std::{sync::Arc, time::Duration};

use tokio::time::advance;

use super::{
    BoxedCall, ScriptedTransport, poll_once, polled_call, reply_of_first_attempt, run_ready_tasks,
    start_call,
};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{BatchFault, CallBatcher, MAX_BATCH_WEIGHT},
};

#[tokio::test(start_paused = true)]
async fn single_call_is_sent_by_its_caller_at_once() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    for command in 1..5 {
        let mut call = polled_call(&batcher, command);
        assert_eq!(transport.sent_batches().last(), Some(&vec![command]));
        transport.allow_replies(1);
        // The call completes in its own poll, without another task.
        assert_eq!(poll_once(&mut call).unwrap().unwrap().first, command);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_made_while_one_is_in_flight_form_ordered_batch() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (1..=9).map(|command| polled_call(&batcher, command)).collect();
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches(), [vec![1]]);
    transport.allow_replies(2);
    for (call, command) in calls.into_iter().zip(1..) {
        assert_eq!(reply_of_first_attempt(call).await, command);
    }
    assert_eq!(transport.sent_batches(), [vec![1], (2..=9).collect()]);
    // The lane is idle again.
    run_ready_tasks().await;
    let _call = polled_call(&batcher, 10);
    assert_eq!(transport.sent_batches().last(), Some(&vec![10]));
}

#[tokio::test(start_paused = true)]
async fn full_batch_is_sent_at_once() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (0..80).map(|command| polled_call(&batcher, command)).collect();
    run_ready_tasks().await;
    let full = |from: u32| (from..from + 32).collect::<Vec<_>>();
    assert_eq!(MAX_BATCH_WEIGHT, 32);
    assert_eq!(transport.sent_batches(), [vec![0], full(1), full(33)]);
    transport.allow_replies(4);
    for (call, command) in calls.into_iter().zip(0..) {
        assert_eq!(reply_of_first_attempt(call).await, command);
    }
    assert_eq!(transport.sent_batches()[3], (65..80).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn call_of_two_steps_weighs_two_and_is_not_split() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let first = polled_call(&batcher, 0);
    let calls: Vec<_> = (1001..1018).map(|command| polled_call(&batcher, command)).collect();
    transport.allow_replies(3);
    reply_of_first_attempt(first).await;
    for (call, command) in calls.into_iter().zip(1001..) {
        let answer = call.await.unwrap();
        assert_eq!((answer.first, answer.second), (command, Some(command)));
    }
    assert_eq!(transport.sent_batches()[1..], [(1001..1017).collect(), vec![1017]]);
}

/// Starts a call and queues two behind it.
fn start_one_and_queue_two(
    batcher: &Arc<CallBatcher<ScriptedTransport>>,
) -> (BoxedCall, [BoxedCall; 2]) {
    (polled_call(batcher, 0), [polled_call(batcher, 1), polled_call(batcher, 2)])
}

#[tokio::test(start_paused = true)]
async fn batch_on_lost_connection_is_resent_and_counts_attempts() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let (first, others) = start_one_and_queue_two(&batcher);
    transport.push_fault(BatchFault::ConnectionLost);
    transport.allow_replies(2);
    assert_eq!(first.await.unwrap().attempts, 2);
    transport.push_fault(BatchFault::ConnectionLost);
    transport.allow_replies(2);
    for call in others {
        assert_eq!(call.await.unwrap().attempts, 2);
    }
    assert_eq!(transport.sent_batches(), [vec![0], vec![0], vec![1, 2], vec![1, 2]]);
}

#[tokio::test(start_paused = true)]
async fn batch_that_did_not_run_is_resent_as_first_attempt() {
    for fault in [|| BatchFault::NotExecuted, || BatchFault::NoScript] {
        let (batcher, transport) = ScriptedTransport::new_batcher();
        let (first, others) = start_one_and_queue_two(&batcher);
        transport.push_fault(fault());
        transport.allow_replies(2);
        assert_eq!(reply_of_first_attempt(first).await, 0);
        transport.push_fault(fault());
        transport.allow_replies(2);
        for (call, command) in others.into_iter().zip(1..) {
            assert_eq!(reply_of_first_attempt(call).await, command);
        }
        let by_text: Vec<_> =
            transport.0.sent_batches.lock().iter().map(|(_, by_text)| *by_text).collect();
        let expects_text = matches!(fault(), BatchFault::NoScript);
        assert_eq!(by_text, [false, expects_text, false, expects_text]);
    }
}

#[tokio::test(start_paused = true)]
async fn error_fails_every_call_of_its_batch_only() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let (first, others) = start_one_and_queue_two(&batcher);
    transport.allow_replies(1);
    reply_of_first_attempt(first).await;
    run_ready_tasks().await;
    let other = polled_call(&batcher, 3);
    transport.push_fault(BatchFault::Failed(Error::new(ErrorKind::Protocol, "test")));
    transport.allow_replies(2);
    for call in others {
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Protocol);
    }
    assert_eq!(reply_of_first_attempt(other).await, 3);
}

#[tokio::test(start_paused = true)]
async fn without_connection_queued_calls_are_unavailable() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (0..3).map(|command| polled_call(&batcher, command)).collect();
    transport.set_disconnected(true);
    transport.push_fault(BatchFault::ConnectionLost);
    transport.allow_replies(1);
    let kinds = futures_util::future::join_all(calls).await;
    let kinds: Vec<_> = kinds.into_iter().map(|answer| answer.unwrap_err().kind()).collect();
    // The first call was sent, so it may have run.
    assert_eq!(kinds, [ErrorKind::Timeout, ErrorKind::Unavailable, ErrorKind::Unavailable]);
    transport.set_disconnected(false);
    transport.allow_replies(1);
    assert_eq!(reply_of_first_attempt(start_call(&batcher, 9)).await, 9);
}

#[tokio::test(start_paused = true)]
async fn few_calls_on_slow_link_are_sent_without_batching() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    for command in 0..3 {
        let call = polled_call(&batcher, command);
        advance(Duration::from_millis(5)).await;
        transport.allow_replies(1);
        reply_of_first_attempt(call).await;
    }
    let calls: Vec<_> = (3..12).map(|command| polled_call(&batcher, command)).collect();
    let single_call_batches: Vec<_> = (0..9).map(|command| vec![command]).collect();
    assert_eq!(transport.sent_batches(), single_call_batches);
    transport.allow_replies(7);
    for (call, command) in calls.into_iter().zip(3..) {
        assert_eq!(reply_of_first_attempt(call).await, command);
    }
    run_ready_tasks().await;
    // One short round trip is enough: the link no longer counts as slow.
    let _calls = [polled_call(&batcher, 20), polled_call(&batcher, 21)];
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches().last(), Some(&vec![20]));
}

/// While the server executes one batch, the next is prepared. A third batch in flight would only
/// make batches smaller.
#[tokio::test(start_paused = true)]
async fn half_batch_waits_only_while_two_batches_are_in_flight() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let mut calls: Vec<_> = (0..16).map(|command| polled_call(&batcher, command)).collect();
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches(), [vec![0]]);
    calls.push(polled_call(&batcher, 16));
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches()[1..], [(1..=16).collect::<Vec<_>>()]);
    calls.extend((17..40).map(|command| polled_call(&batcher, command)));
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches().len(), 2);
    transport.allow_replies(3);
    for (call, command) in calls.into_iter().zip(0..) {
        assert_eq!(reply_of_first_attempt(call).await, command);
    }
    assert_eq!(transport.sent_batches()[2..], [(17..40).collect::<Vec<_>>()]);
}
