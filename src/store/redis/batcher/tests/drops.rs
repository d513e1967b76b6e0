//! Callers, tasks and runtimes that end at any point.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

use super::{Call, DEADLINE, Field, LONG, arrived, begun, call, call_within, poll, settle};
use crate::{
    error::ErrorKind,
    store::redis::batcher::{BatchFault, CallBatcher},
};

/// The undo of a step: its number and 100. It is never before the step, and always there.
fn undone(sent: &[Vec<u32>], step: u32) {
    let sent = sent.concat();
    let undo = sent.iter().position(|s| *s == step + 100).expect("the undo is sent");
    assert!(!sent[undo..].contains(&step), "{step} after its undo: {sent:?}");
}

/// One that waits, or flies, among others is dropped when it was looked at so many times.
async fn dropped_after(polls: usize, others: u32, faults: usize) {
    let (combiner, field) = Field::new();
    let before: Vec<_> =
        (1..=others).map(|step| crate::store::spawn(call(&combiner, step))).collect();
    settle().await;
    (0..faults).for_each(|_| field.meets(BatchFault::ConnectionLost));
    let mut dropped = call(&combiner, 50);
    for _ in 0..polls {
        if poll(&mut dropped).is_some() {
            break;
        }
        field.arrive(1);
        tokio::task::yield_now().await;
    }
    drop(dropped);
    let undo = call(&combiner, 150);
    let undo = crate::store::spawn(undo);
    let after = crate::store::spawn(call(&combiner, 60));
    field.arrive(100);
    assert_eq!(undo.await.unwrap().unwrap().first, 150);
    assert_eq!(after.await.unwrap().unwrap().first, 60);
    for call in before {
        call.await.unwrap().unwrap();
    }
    undone(&field.sent(), 50);
}

#[tokio::test(start_paused = true)]
async fn an_undo_is_behind_what_it_undoes_whenever_that_is_dropped() {
    for others in [0, 1, 2, 40] {
        for faults in 0..3 {
            for polls in 0..12 {
                dropped_after(polls, others, faults).await;
            }
        }
    }
}

/// Who goes alone holds the lane from the beginning.
#[tokio::test(start_paused = true)]
async fn who_is_never_polled_is_not_sent_and_lets_others_go() {
    let (combiner, field) = Field::new();
    let now = Instant::now();
    let never = combiner.start_call(1, now, now + DEADLINE);
    let queued = begun(&combiner, 2);
    drop(never);
    field.arrive(1);
    assert_eq!(arrived(queued).await, 2);
    assert_eq!(field.sent(), [vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn who_has_left_the_queue_is_not_sent() {
    let (combiner, field) = Field::new();
    let (first, gone, last) = (begun(&combiner, 1), begun(&combiner, 2), begun(&combiner, 3));
    drop(gone);
    field.arrive(2);
    arrived(first).await;
    arrived(last).await;
    assert_eq!(field.sent(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn who_has_left_a_broken_flight_is_not_sent_again() {
    let (combiner, field) = Field::new();
    let calls: Vec<_> = (1..=3).map(|step| begun(&combiner, step)).collect();
    let [first, gone, last] = calls.try_into().ok().unwrap();
    field.arrive(1);
    arrived(first).await;
    settle().await;
    assert_eq!(field.sent()[1], [2, 3]);
    drop(gone);
    field.meets(BatchFault::ConnectionLost);
    field.arrive(2);
    assert_eq!(last.await.unwrap().attempts, 2);
    assert_eq!(field.sent()[2], [3]);
}

/// Dropped on a thread without a runtime: the one the combiner was made on takes over.
#[tokio::test(start_paused = true)]
async fn a_thread_without_a_runtime_may_drop_a_caller_too() {
    let (combiner, field) = Field::new();
    let first = begun(&combiner, 1);
    let queued = begun(&combiner, 2);
    std::thread::spawn(move || drop(first)).join().unwrap();
    field.arrive(1);
    arrived(queued).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_put_stands_before_all_that_is_called_later_and_is_sent_unheard() {
    let (combiner, field) = Field::new();
    drop(combiner.submit(1, Instant::now() + DEADLINE).unwrap());
    let later = begun(&combiner, 2);
    field.arrive(1);
    arrived(later).await;
    assert_eq!(field.sent(), [vec![1, 2]]);
    field.arrive(1);
    let heard = combiner.submit(3, Instant::now() + DEADLINE).unwrap();
    assert_eq!(heard.await.unwrap().first, 3);
    let late = combiner.submit(4, Instant::now() + DEADLINE).unwrap();
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Timeout);
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn waits_for(field: &Field, flights: usize) {
    while field.sent().len() < flights {
        std::thread::yield_now();
    }
}

fn queued_on(here: &Runtime, combiner: &Arc<CallBatcher<Field>>, step: u32) -> Call {
    queued_within(here, combiner, step, LONG)
}

fn queued_within(
    here: &Runtime,
    combiner: &Arc<CallBatcher<Field>>,
    step: u32,
    deadline: Duration,
) -> Call {
    let _here = here.enter();
    let mut call = call_within(combiner, step, deadline);
    assert!(poll(&mut call).is_none(), "{step}");
    call
}

#[test]
fn without_any_runtime_nothing_is_put() {
    let (combiner, field) = Field::new();
    assert!(combiner.submit(1, Instant::now() + DEADLINE).is_none());
    let here = runtime();
    field.arrive(1);
    assert_eq!(here.block_on(call_within(&combiner, 2, LONG)).unwrap().first, 2);
    assert_eq!(field.sent(), [vec![2]]);
}

#[test]
fn a_runtime_that_ends_does_not_take_the_lane_along() {
    let (home, here) = (runtime(), runtime());
    let (combiner, field) = home.block_on(async { Field::within(LONG) });
    // A flight of two on the runtime that will end; nobody looks at its callers meanwhile.
    let first = queued_on(&home, &combiner, 1);
    let others = [queued_on(&here, &combiner, 2), queued_on(&here, &combiner, 3)];
    let guard = home.enter();
    drop(first);
    drop(guard);
    waits_for(&field, 2);
    // Its one thread is done with the look at it in which it was sent.
    here.block_on(home.spawn(async {})).unwrap();
    home.shutdown_timeout(LONG);
    // They are sent again, by the next one that comes.
    let last = queued_on(&here, &combiner, 4);
    field.arrive(10);
    for (call, sent) in others.into_iter().chain([last]).zip([2, 2, 1]) {
        assert_eq!(here.block_on(call).unwrap().attempts, sent, "{:?}", field.sent());
    }
    assert_eq!(field.sent()[2], [2, 3, 4]);
}

/// A runtime of one thread on which nothing is run any more, and which has not ended.
#[test]
fn a_runtime_that_stands_still_does_not_block_the_lane() {
    let still = Builder::new_current_thread().enable_all().build().unwrap();
    let here = runtime();
    let (combiner, field) = Field::new();
    let first = queued_within(&still, &combiner, 1, DEADLINE);
    let _second = queued_within(&still, &combiner, 2, DEADLINE);
    let guard = still.enter();
    drop(first);
    drop(guard);
    field.arrive(10);
    // Whoever comes looks whether anybody comes for them, and in time.
    assert_eq!(here.block_on(call(&combiner, 3)).unwrap().first, 3);
}

/// Such as one of many that are polled by turns, in a loop that is at something else; or one on a thread that is.
#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_looks_at_keeps_nobody_waiting() {
    let (combiner, field) = Field::new();
    let _unpolled = begun(&combiner, 1);
    field.arrive(10);
    let started = Instant::now();
    let (second, third) = tokio::join!(call(&combiner, 2), call(&combiner, 3));
    assert_eq!((second.unwrap().first, third.unwrap().first), (2, 3));
    let waited = started.elapsed();
    assert!(waited < DEADLINE / 3, "{waited:?}");
    assert_eq!(field.sent(), [vec![1], vec![2, 3]]);
    assert_eq!(call(&combiner, 4).await.unwrap().first, 4);
    assert_eq!(started.elapsed(), waited, "it is known to be no reason to wait");
}
