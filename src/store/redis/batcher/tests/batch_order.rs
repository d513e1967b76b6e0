//! Who goes when, and with whom.

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
    let (combiner, field) = ScriptedTransport::new_batcher();
    for step in 1..5 {
        let mut call = polled_call(&combiner, step);
        assert_eq!(field.sent_batches().last(), Some(&vec![step]));
        field.allow_replies(1);
        // Nobody else was needed.
        assert_eq!(poll_once(&mut call).unwrap().unwrap().first, step);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_made_while_one_is_in_flight_form_ordered_batch() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (1..=9).map(|step| polled_call(&combiner, step)).collect();
    run_ready_tasks().await;
    assert_eq!(field.sent_batches(), [vec![1]]);
    field.allow_replies(2);
    for (call, step) in calls.into_iter().zip(1..) {
        assert_eq!(reply_of_first_attempt(call).await, step);
    }
    assert_eq!(field.sent_batches(), [vec![1], (2..=9).collect()]);
    // The lane is idle again.
    run_ready_tasks().await;
    let _call = polled_call(&combiner, 10);
    assert_eq!(field.sent_batches().last(), Some(&vec![10]));
}

#[tokio::test(start_paused = true)]
async fn full_batch_is_sent_at_once() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (0..80).map(|step| polled_call(&combiner, step)).collect();
    run_ready_tasks().await;
    let full = |from: u32| (from..from + 32).collect::<Vec<_>>();
    assert_eq!(MAX_BATCH_WEIGHT, 32);
    assert_eq!(field.sent_batches(), [vec![0], full(1), full(33)]);
    field.allow_replies(4);
    for (call, step) in calls.into_iter().zip(0..) {
        assert_eq!(reply_of_first_attempt(call).await, step);
    }
    assert_eq!(field.sent_batches()[3], (65..80).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn call_of_two_steps_weighs_two_and_is_not_split() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let first = polled_call(&combiner, 0);
    let calls: Vec<_> = (1001..1018).map(|step| polled_call(&combiner, step)).collect();
    field.allow_replies(3);
    reply_of_first_attempt(first).await;
    for (call, step) in calls.into_iter().zip(1001..) {
        let answer = call.await.unwrap();
        assert_eq!((answer.first, answer.second), (step, Some(step)));
    }
    assert_eq!(field.sent_batches()[1..], [(1001..1017).collect(), vec![1017]]);
}

/// One under way and two in the queue.
fn start_one_and_queue_two(
    combiner: &Arc<CallBatcher<ScriptedTransport>>,
) -> (BoxedCall, [BoxedCall; 2]) {
    (polled_call(combiner, 0), [polled_call(combiner, 1), polled_call(combiner, 2)])
}

#[tokio::test(start_paused = true)]
async fn batch_on_lost_connection_is_resent_and_counts_attempts() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let (first, others) = start_one_and_queue_two(&combiner);
    field.push_fault(BatchFault::ConnectionLost);
    field.allow_replies(2);
    assert_eq!(first.await.unwrap().attempts, 2);
    field.push_fault(BatchFault::ConnectionLost);
    field.allow_replies(2);
    for call in others {
        assert_eq!(call.await.unwrap().attempts, 2);
    }
    assert_eq!(field.sent_batches(), [vec![0], vec![0], vec![1, 2], vec![1, 2]]);
}

#[tokio::test(start_paused = true)]
async fn batch_that_did_not_run_is_resent_as_first_attempt() {
    for fault in [|| BatchFault::NotExecuted, || BatchFault::NoScript] {
        let (combiner, field) = ScriptedTransport::new_batcher();
        let (first, others) = start_one_and_queue_two(&combiner);
        field.push_fault(fault());
        field.allow_replies(2);
        assert_eq!(reply_of_first_attempt(first).await, 0);
        field.push_fault(fault());
        field.allow_replies(2);
        for (call, step) in others.into_iter().zip(1..) {
            assert_eq!(reply_of_first_attempt(call).await, step);
        }
        let by_text: Vec<_> =
            field.0.sent_batches.lock().iter().map(|(_, by_text)| *by_text).collect();
        let text = matches!(fault(), BatchFault::NoScript);
        assert_eq!(by_text, [false, text, false, text]);
    }
}

#[tokio::test(start_paused = true)]
async fn error_fails_every_call_of_its_batch_only() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let (first, others) = start_one_and_queue_two(&combiner);
    field.allow_replies(1);
    reply_of_first_attempt(first).await;
    run_ready_tasks().await;
    let other = polled_call(&combiner, 3);
    field.push_fault(BatchFault::Failed(Error::new(ErrorKind::Protocol, "test")));
    field.allow_replies(2);
    for call in others {
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Protocol);
    }
    assert_eq!(reply_of_first_attempt(other).await, 3);
}

#[tokio::test(start_paused = true)]
async fn without_connection_queued_calls_are_unavailable() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (0..3).map(|step| polled_call(&combiner, step)).collect();
    field.set_disconnected(true);
    field.push_fault(BatchFault::ConnectionLost);
    field.allow_replies(1);
    let kinds = futures_util::future::join_all(calls).await;
    let kinds: Vec<_> = kinds.into_iter().map(|answer| answer.unwrap_err().kind()).collect();
    // The first one may have run.
    assert_eq!(kinds, [ErrorKind::Timeout, ErrorKind::Unavailable, ErrorKind::Unavailable]);
    field.set_disconnected(false);
    field.allow_replies(1);
    assert_eq!(reply_of_first_attempt(start_call(&combiner, 9)).await, 9);
}

#[tokio::test(start_paused = true)]
async fn few_calls_on_slow_link_are_sent_without_batching() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    for step in 0..3 {
        let call = polled_call(&combiner, step);
        advance(Duration::from_millis(5)).await;
        field.allow_replies(1);
        reply_of_first_attempt(call).await;
    }
    let calls: Vec<_> = (3..12).map(|step| polled_call(&combiner, step)).collect();
    let alone: Vec<_> = (0..9).map(|step| vec![step]).collect();
    assert_eq!(field.sent_batches(), alone);
    field.allow_replies(7);
    for (call, step) in calls.into_iter().zip(3..) {
        assert_eq!(reply_of_first_attempt(call).await, step);
    }
    run_ready_tasks().await;
    // It was short for once: that is what the way takes.
    let _calls = [polled_call(&combiner, 20), polled_call(&combiner, 21)];
    run_ready_tasks().await;
    assert_eq!(field.sent_batches().last(), Some(&vec![20]));
}

/// While the server is at one flight, the next is made ready; more of them would only be shorter.
#[tokio::test(start_paused = true)]
async fn half_batch_waits_only_while_two_batches_are_in_flight() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let mut calls: Vec<_> = (0..16).map(|step| polled_call(&combiner, step)).collect();
    run_ready_tasks().await;
    assert_eq!(field.sent_batches(), [vec![0]]);
    calls.push(polled_call(&combiner, 16));
    run_ready_tasks().await;
    assert_eq!(field.sent_batches()[1..], [(1..=16).collect::<Vec<_>>()]);
    calls.extend((17..40).map(|step| polled_call(&combiner, step)));
    run_ready_tasks().await;
    assert_eq!(field.sent_batches().len(), 2);
    field.allow_replies(3);
    for (call, step) in calls.into_iter().zip(0..) {
        assert_eq!(reply_of_first_attempt(call).await, step);
    }
    assert_eq!(field.sent_batches()[2..], [(17..40).collect::<Vec<_>>()]);
}
