//! Callers, tasks and runtimes that end at any point.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

use super::{
    BoxedCall, CALL_TIMEOUT, REAL_TIME_TIMEOUT, ScriptedTransport, poll_once, polled_call,
    reply_of_first_attempt, run_ready_tasks, start_call, start_call_within,
};
use crate::{
    error::ErrorKind,
    store::redis::batcher::{BatchFault, CallBatcher},
};

/// The undo of a step: its number and 100. It is never before the step, and always there.
fn assert_undo_is_last(sent: &[Vec<u32>], step: u32) {
    let sent = sent.concat();
    let undo = sent.iter().position(|s| *s == step + 100).expect("the undo is sent");
    assert!(!sent[undo..].contains(&step), "{step} after its undo: {sent:?}");
}

/// One that waits, or flies, among others is dropped when it was looked at so many times.
async fn drop_call_after_polls(polls: usize, others: u32, faults: usize) {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let before: Vec<_> =
        (1..=others).map(|step| crate::store::spawn(start_call(&combiner, step))).collect();
    run_ready_tasks().await;
    (0..faults).for_each(|_| field.push_fault(BatchFault::ConnectionLost));
    let mut dropped = start_call(&combiner, 50);
    for _ in 0..polls {
        if poll_once(&mut dropped).is_some() {
            break;
        }
        field.allow_replies(1);
        tokio::task::yield_now().await;
    }
    drop(dropped);
    let undo = start_call(&combiner, 150);
    let undo = crate::store::spawn(undo);
    let after = crate::store::spawn(start_call(&combiner, 60));
    field.allow_replies(100);
    assert_eq!(undo.await.unwrap().unwrap().first, 150);
    assert_eq!(after.await.unwrap().unwrap().first, 60);
    for call in before {
        call.await.unwrap().unwrap();
    }
    assert_undo_is_last(&field.sent_batches(), 50);
}

#[tokio::test(start_paused = true)]
async fn undo_of_call_dropped_at_any_poll_is_sent_after_it() {
    for others in [0, 1, 2, 40] {
        for faults in 0..3 {
            for polls in 0..12 {
                drop_call_after_polls(polls, others, faults).await;
            }
        }
    }
}

/// Who goes alone holds the lane from the beginning.
#[tokio::test(start_paused = true)]
async fn unpolled_dropped_call_is_not_sent_and_frees_lane() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let now = Instant::now();
    let never = combiner.start_call(1, now, now + CALL_TIMEOUT);
    let queued = polled_call(&combiner, 2);
    drop(never);
    field.allow_replies(1);
    assert_eq!(reply_of_first_attempt(queued).await, 2);
    assert_eq!(field.sent_batches(), [vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn dropped_queued_call_is_not_sent() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let (first, gone, last) =
        (polled_call(&combiner, 1), polled_call(&combiner, 2), polled_call(&combiner, 3));
    drop(gone);
    field.allow_replies(2);
    reply_of_first_attempt(first).await;
    reply_of_first_attempt(last).await;
    assert_eq!(field.sent_batches(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_of_failed_batch_is_not_resent() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (1..=3).map(|step| polled_call(&combiner, step)).collect();
    let [first, gone, last] = calls.try_into().ok().unwrap();
    field.allow_replies(1);
    reply_of_first_attempt(first).await;
    run_ready_tasks().await;
    assert_eq!(field.sent_batches()[1], [2, 3]);
    drop(gone);
    field.push_fault(BatchFault::ConnectionLost);
    field.allow_replies(2);
    assert_eq!(last.await.unwrap().attempts, 2);
    assert_eq!(field.sent_batches()[2], [3]);
}

/// Dropped on a thread without a runtime: the one the combiner was made on takes over.
#[tokio::test(start_paused = true)]
async fn call_dropped_outside_runtime_hands_lane_to_next_call() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let first = polled_call(&combiner, 1);
    let queued = polled_call(&combiner, 2);
    std::thread::spawn(move || drop(first)).join().unwrap();
    field.allow_replies(1);
    reply_of_first_attempt(queued).await;
}

#[tokio::test(start_paused = true)]
async fn submitted_call_is_sent_first_even_if_reply_is_dropped() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    drop(combiner.submit(1, Instant::now() + CALL_TIMEOUT).unwrap());
    let later = polled_call(&combiner, 2);
    field.allow_replies(1);
    reply_of_first_attempt(later).await;
    assert_eq!(field.sent_batches(), [vec![1, 2]]);
    field.allow_replies(1);
    let heard = combiner.submit(3, Instant::now() + CALL_TIMEOUT).unwrap();
    assert_eq!(heard.await.unwrap().first, 3);
    let late = combiner.submit(4, Instant::now() + CALL_TIMEOUT).unwrap();
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Timeout);
}

fn multi_thread_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn wait_for_sent_batches(field: &ScriptedTransport, flights: usize) {
    while field.sent_batches().len() < flights {
        std::thread::yield_now();
    }
}

fn queue_call_on_runtime(
    here: &Runtime,
    combiner: &Arc<CallBatcher<ScriptedTransport>>,
    step: u32,
) -> BoxedCall {
    queue_call_on_runtime_within(here, combiner, step, REAL_TIME_TIMEOUT)
}

fn queue_call_on_runtime_within(
    here: &Runtime,
    combiner: &Arc<CallBatcher<ScriptedTransport>>,
    step: u32,
    deadline: Duration,
) -> BoxedCall {
    let _here = here.enter();
    let mut call = start_call_within(combiner, step, deadline);
    assert!(poll_once(&mut call).is_none(), "{step}");
    call
}

#[test]
fn submit_without_runtime_returns_none() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    assert!(combiner.submit(1, Instant::now() + CALL_TIMEOUT).is_none());
    let here = multi_thread_runtime();
    field.allow_replies(1);
    assert_eq!(here.block_on(start_call_within(&combiner, 2, REAL_TIME_TIMEOUT)).unwrap().first, 2);
    assert_eq!(field.sent_batches(), [vec![2]]);
}

#[test]
fn batch_of_ended_runtime_is_resent_by_next_caller() {
    let (home, here) = (multi_thread_runtime(), multi_thread_runtime());
    let (combiner, field) =
        home.block_on(async { ScriptedTransport::new_batcher_within(REAL_TIME_TIMEOUT) });
    // A flight of two on the runtime that will end; nobody looks at its callers meanwhile.
    let first = queue_call_on_runtime(&home, &combiner, 1);
    let others =
        [queue_call_on_runtime(&here, &combiner, 2), queue_call_on_runtime(&here, &combiner, 3)];
    let guard = home.enter();
    drop(first);
    drop(guard);
    wait_for_sent_batches(&field, 2);
    // Its one thread is done with the look at it in which it was sent.
    here.block_on(home.spawn(async {})).unwrap();
    home.shutdown_timeout(REAL_TIME_TIMEOUT);
    // They are sent again, by the next one that comes.
    let last = queue_call_on_runtime(&here, &combiner, 4);
    field.allow_replies(10);
    for (call, sent) in others.into_iter().chain([last]).zip([2, 2, 1]) {
        assert_eq!(here.block_on(call).unwrap().attempts, sent, "{:?}", field.sent_batches());
    }
    assert_eq!(field.sent_batches()[2], [2, 3, 4]);
}

/// A runtime of one thread on which nothing is run any more, and which has not ended.
#[test]
fn stalled_runtime_does_not_block_lane() {
    let still = Builder::new_current_thread().enable_all().build().unwrap();
    let here = multi_thread_runtime();
    let (combiner, field) = ScriptedTransport::new_batcher();
    let first = queue_call_on_runtime_within(&still, &combiner, 1, CALL_TIMEOUT);
    let _second = queue_call_on_runtime_within(&still, &combiner, 2, CALL_TIMEOUT);
    let guard = still.enter();
    drop(first);
    drop(guard);
    field.allow_replies(10);
    // Whoever comes looks whether anybody comes for them, and in time.
    assert_eq!(here.block_on(start_call(&combiner, 3)).unwrap().first, 3);
}

/// Such as one of many that are polled by turns, in a loop that is at something else; or one on a thread that is.
#[tokio::test(start_paused = true)]
async fn unpolled_call_delays_others_less_than_third_of_deadline() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    let _unpolled = polled_call(&combiner, 1);
    field.allow_replies(10);
    let started = Instant::now();
    let (second, third) = tokio::join!(start_call(&combiner, 2), start_call(&combiner, 3));
    assert_eq!((second.unwrap().first, third.unwrap().first), (2, 3));
    let waited = started.elapsed();
    assert!(waited < CALL_TIMEOUT / 3, "{waited:?}");
    assert_eq!(field.sent_batches(), [vec![1], vec![2, 3]]);
    assert_eq!(start_call(&combiner, 4).await.unwrap().first, 4);
    assert_eq!(started.elapsed(), waited, "it is known to be no reason to wait");
}
