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

/// Asserts that the undo of a command, numbered 100 higher, is sent and never precedes it.
fn assert_undo_is_last(sent: &[Vec<u32>], command: u32) {
    let sent = sent.concat();
    let undo = sent.iter().position(|s| *s == command + 100).expect("the undo is sent");
    assert!(!sent[undo..].contains(&command), "{command} after its undo: {sent:?}");
}

/// Drops a queued or sent call after `polls` polls, beside `others` other calls and after `faults`
/// lost connections.
async fn drop_call_after_polls(polls: usize, others: u32, faults: usize) {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let before: Vec<_> =
        (1..=others).map(|command| crate::store::spawn(start_call(&batcher, command))).collect();
    run_ready_tasks().await;
    (0..faults).for_each(|_| transport.push_fault(BatchFault::ConnectionLost));
    let mut dropped = start_call(&batcher, 50);
    for _ in 0..polls {
        if poll_once(&mut dropped).is_some() {
            break;
        }
        transport.allow_replies(1);
        tokio::task::yield_now().await;
    }
    drop(dropped);
    let undo = start_call(&batcher, 150);
    let undo = crate::store::spawn(undo);
    let after = crate::store::spawn(start_call(&batcher, 60));
    transport.allow_replies(100);
    assert_eq!(undo.await.unwrap().unwrap().first, 150);
    assert_eq!(after.await.unwrap().unwrap().first, 60);
    for call in before {
        call.await.unwrap().unwrap();
    }
    assert_undo_is_last(&transport.sent_batches(), 50);
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

/// A call that is sent alone occupies the lane from its start.
#[tokio::test(start_paused = true)]
async fn unpolled_dropped_call_is_not_sent_and_frees_lane() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let now = Instant::now();
    let unpolled = batcher.start_call(1, now, now + CALL_TIMEOUT);
    let queued = polled_call(&batcher, 2);
    drop(unpolled);
    transport.allow_replies(1);
    assert_eq!(reply_of_first_attempt(queued).await, 2);
    assert_eq!(transport.sent_batches(), [vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn dropped_queued_call_is_not_sent() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let (first, dropped, last) =
        (polled_call(&batcher, 1), polled_call(&batcher, 2), polled_call(&batcher, 3));
    drop(dropped);
    transport.allow_replies(2);
    reply_of_first_attempt(first).await;
    reply_of_first_attempt(last).await;
    assert_eq!(transport.sent_batches(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_of_failed_batch_is_not_resent() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (1..=3).map(|command| polled_call(&batcher, command)).collect();
    let [first, dropped, last] = calls.try_into().ok().unwrap();
    transport.allow_replies(1);
    reply_of_first_attempt(first).await;
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches()[1], [2, 3]);
    drop(dropped);
    transport.push_fault(BatchFault::ConnectionLost);
    transport.allow_replies(2);
    assert_eq!(last.await.unwrap().attempts, 2);
    assert_eq!(transport.sent_batches()[2], [3]);
}

/// On a thread without a runtime, the runtime on which the batcher was created takes over.
#[tokio::test(start_paused = true)]
async fn call_dropped_outside_runtime_hands_lane_to_next_call() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let first = polled_call(&batcher, 1);
    let queued = polled_call(&batcher, 2);
    std::thread::spawn(move || drop(first)).join().unwrap();
    transport.allow_replies(1);
    reply_of_first_attempt(queued).await;
}

#[tokio::test(start_paused = true)]
async fn submitted_call_is_sent_first_even_if_reply_is_dropped() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    drop(batcher.submit(1, Instant::now() + CALL_TIMEOUT).unwrap());
    let later = polled_call(&batcher, 2);
    transport.allow_replies(1);
    reply_of_first_attempt(later).await;
    assert_eq!(transport.sent_batches(), [vec![1, 2]]);
    transport.allow_replies(1);
    let awaited = batcher.submit(3, Instant::now() + CALL_TIMEOUT).unwrap();
    assert_eq!(awaited.await.unwrap().first, 3);
    let late = batcher.submit(4, Instant::now() + CALL_TIMEOUT).unwrap();
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Timeout);
}

fn multi_thread_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn wait_for_sent_batches(transport: &ScriptedTransport, count: usize) {
    while transport.sent_batches().len() < count {
        std::thread::yield_now();
    }
}

fn queue_call_on_runtime(
    runtime: &Runtime,
    batcher: &Arc<CallBatcher<ScriptedTransport>>,
    command: u32,
) -> BoxedCall {
    queue_call_on_runtime_within(runtime, batcher, command, REAL_TIME_TIMEOUT)
}

fn queue_call_on_runtime_within(
    runtime: &Runtime,
    batcher: &Arc<CallBatcher<ScriptedTransport>>,
    command: u32,
    timeout: Duration,
) -> BoxedCall {
    let _guard = runtime.enter();
    let mut call = start_call_within(batcher, command, timeout);
    assert!(poll_once(&mut call).is_none(), "{command}");
    call
}

#[test]
fn submit_without_runtime_returns_none() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    assert!(batcher.submit(1, Instant::now() + CALL_TIMEOUT).is_none());
    let here = multi_thread_runtime();
    transport.allow_replies(1);
    assert_eq!(here.block_on(start_call_within(&batcher, 2, REAL_TIME_TIMEOUT)).unwrap().first, 2);
    assert_eq!(transport.sent_batches(), [vec![2]]);
}

#[test]
fn batch_of_ended_runtime_is_resent_by_next_caller() {
    let (home, here) = (multi_thread_runtime(), multi_thread_runtime());
    let (batcher, transport) =
        home.block_on(async { ScriptedTransport::new_batcher_within(REAL_TIME_TIMEOUT) });
    // A batch of two on the runtime that will end. Its callers are not polled meanwhile.
    let first = queue_call_on_runtime(&home, &batcher, 1);
    let others =
        [queue_call_on_runtime(&here, &batcher, 2), queue_call_on_runtime(&here, &batcher, 3)];
    let guard = home.enter();
    drop(first);
    drop(guard);
    wait_for_sent_batches(&transport, 2);
    // The runtime's only thread has finished the poll that sent the batch.
    here.block_on(home.spawn(async {})).unwrap();
    home.shutdown_timeout(REAL_TIME_TIMEOUT);
    // The next caller sends both again.
    let last = queue_call_on_runtime(&here, &batcher, 4);
    transport.allow_replies(10);
    for (call, sent) in others.into_iter().chain([last]).zip([2, 2, 1]) {
        assert_eq!(here.block_on(call).unwrap().attempts, sent, "{:?}", transport.sent_batches());
    }
    assert_eq!(transport.sent_batches()[2], [2, 3, 4]);
}

/// The runtime has a single thread, runs nothing any more, and has not ended.
#[test]
fn stalled_runtime_does_not_block_lane() {
    let stalled = Builder::new_current_thread().enable_all().build().unwrap();
    let here = multi_thread_runtime();
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let first = queue_call_on_runtime_within(&stalled, &batcher, 1, CALL_TIMEOUT);
    let _second = queue_call_on_runtime_within(&stalled, &batcher, 2, CALL_TIMEOUT);
    let guard = stalled.enter();
    drop(first);
    drop(guard);
    transport.allow_replies(10);
    // A new caller detects the stalled batch and sends the queue itself.
    assert_eq!(here.block_on(start_call(&batcher, 3)).unwrap().first, 3);
}

/// The future may be one of many in a loop that does something else, or belong to a blocked thread.
#[tokio::test(start_paused = true)]
async fn unpolled_call_delays_others_less_than_third_of_deadline() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let _unpolled = polled_call(&batcher, 1);
    transport.allow_replies(10);
    let started = Instant::now();
    let (second, third) = tokio::join!(start_call(&batcher, 2), start_call(&batcher, 3));
    assert_eq!((second.unwrap().first, third.unwrap().first), (2, 3));
    let waited = started.elapsed();
    assert!(waited < CALL_TIMEOUT / 3, "{waited:?}");
    assert_eq!(transport.sent_batches(), [vec![1], vec![2, 3]]);
    assert_eq!(start_call(&batcher, 4).await.unwrap().first, 4);
    assert_eq!(started.elapsed(), waited, "a dropped batch delays no later call");
}
