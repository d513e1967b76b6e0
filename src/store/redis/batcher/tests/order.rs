//! Who goes when, and with whom.

use std::{sync::Arc, time::Duration};

use tokio::time::advance;

use super::{Call, Field, arrived, begun, call, poll, settle};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{BatchFault, CallBatcher, MAX_BATCH_WEIGHT},
};

#[tokio::test(start_paused = true)]
async fn a_lone_call_is_sent_by_its_caller_at_once() {
    let (combiner, field) = Field::new();
    for step in 1..5 {
        let mut call = begun(&combiner, step);
        assert_eq!(field.sent().last(), Some(&vec![step]));
        field.arrive(1);
        // Nobody else was needed.
        assert_eq!(poll(&mut call).unwrap().unwrap().first, step);
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_come_meanwhile_go_together_in_their_order() {
    let (combiner, field) = Field::new();
    let calls: Vec<_> = (1..=9).map(|step| begun(&combiner, step)).collect();
    settle().await;
    assert_eq!(field.sent(), [vec![1]]);
    field.arrive(2);
    for (call, step) in calls.into_iter().zip(1..) {
        assert_eq!(arrived(call).await, step);
    }
    assert_eq!(field.sent(), [vec![1], (2..=9).collect()]);
    // The lane is idle again.
    settle().await;
    let _call = begun(&combiner, 10);
    assert_eq!(field.sent().last(), Some(&vec![10]));
}

#[tokio::test(start_paused = true)]
async fn a_full_flight_waits_for_nobody() {
    let (combiner, field) = Field::new();
    let calls: Vec<_> = (0..80).map(|step| begun(&combiner, step)).collect();
    settle().await;
    let full = |from: u32| (from..from + 32).collect::<Vec<_>>();
    assert_eq!(MAX_BATCH_WEIGHT, 32);
    assert_eq!(field.sent(), [vec![0], full(1), full(33)]);
    field.arrive(4);
    for (call, step) in calls.into_iter().zip(0..) {
        assert_eq!(arrived(call).await, step);
    }
    assert_eq!(field.sent()[3], (65..80).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn two_steps_of_one_call_count_as_two_and_stay_together() {
    let (combiner, field) = Field::new();
    let first = begun(&combiner, 0);
    let calls: Vec<_> = (1001..1018).map(|step| begun(&combiner, step)).collect();
    field.arrive(3);
    arrived(first).await;
    for (call, step) in calls.into_iter().zip(1001..) {
        let answer = call.await.unwrap();
        assert_eq!((answer.first, answer.second), (step, Some(step)));
    }
    assert_eq!(field.sent()[1..], [(1001..1017).collect(), vec![1017]]);
}

/// One under way and two in the queue.
fn one_and_two(combiner: &Arc<CallBatcher<Field>>) -> (Call, [Call; 2]) {
    (begun(combiner, 0), [begun(combiner, 1), begun(combiner, 2)])
}

#[tokio::test(start_paused = true)]
async fn a_broken_flight_goes_again_and_says_so() {
    let (combiner, field) = Field::new();
    let (first, others) = one_and_two(&combiner);
    field.meets(BatchFault::ConnectionLost);
    field.arrive(2);
    assert_eq!(first.await.unwrap().attempts, 2);
    field.meets(BatchFault::ConnectionLost);
    field.arrive(2);
    for call in others {
        assert_eq!(call.await.unwrap().attempts, 2);
    }
    assert_eq!(field.sent(), [vec![0], vec![0], vec![1, 2], vec![1, 2]]);
}

#[tokio::test(start_paused = true)]
async fn what_has_not_run_goes_again_and_nobody_hears_of_it() {
    for fault in [|| BatchFault::NotExecuted, || BatchFault::NoScript] {
        let (combiner, field) = Field::new();
        let (first, others) = one_and_two(&combiner);
        field.meets(fault());
        field.arrive(2);
        assert_eq!(arrived(first).await, 0);
        field.meets(fault());
        field.arrive(2);
        for (call, step) in others.into_iter().zip(1..) {
            assert_eq!(arrived(call).await, step);
        }
        let by_text: Vec<_> = field.0.sent.lock().iter().map(|(_, by_text)| *by_text).collect();
        let text = matches!(fault(), BatchFault::NoScript);
        assert_eq!(by_text, [false, text, false, text]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_told_to_all_of_a_flight_and_to_nobody_else() {
    let (combiner, field) = Field::new();
    let (first, others) = one_and_two(&combiner);
    field.arrive(1);
    arrived(first).await;
    settle().await;
    let other = begun(&combiner, 3);
    field.meets(BatchFault::Failed(Error::new(ErrorKind::Protocol, "test")));
    field.arrive(2);
    for call in others {
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Protocol);
    }
    assert_eq!(arrived(other).await, 3);
}

#[tokio::test(start_paused = true)]
async fn without_a_way_to_the_server_nothing_was_sent() {
    let (combiner, field) = Field::new();
    let calls: Vec<_> = (0..3).map(|step| begun(&combiner, step)).collect();
    field.close(true);
    field.meets(BatchFault::ConnectionLost);
    field.arrive(1);
    let kinds = futures_util::future::join_all(calls).await;
    let kinds: Vec<_> = kinds.into_iter().map(|answer| answer.unwrap_err().kind()).collect();
    // The first one may have run.
    assert_eq!(kinds, [ErrorKind::Timeout, ErrorKind::Unavailable, ErrorKind::Unavailable]);
    field.close(false);
    field.arrive(1);
    assert_eq!(arrived(call(&combiner, 9)).await, 9);
}

#[tokio::test(start_paused = true)]
async fn on_a_long_way_few_do_not_wait_for_company() {
    let (combiner, field) = Field::new();
    for step in 0..3 {
        let call = begun(&combiner, step);
        advance(Duration::from_millis(5)).await;
        field.arrive(1);
        arrived(call).await;
    }
    let calls: Vec<_> = (3..12).map(|step| begun(&combiner, step)).collect();
    let alone: Vec<_> = (0..9).map(|step| vec![step]).collect();
    assert_eq!(field.sent(), alone);
    field.arrive(7);
    for (call, step) in calls.into_iter().zip(3..) {
        assert_eq!(arrived(call).await, step);
    }
    settle().await;
    // It was short for once: that is what the way takes.
    let _calls = [begun(&combiner, 20), begun(&combiner, 21)];
    settle().await;
    assert_eq!(field.sent().last(), Some(&vec![20]));
}

/// While the server is at one flight, the next is made ready; more of them would only be shorter.
#[tokio::test(start_paused = true)]
async fn half_a_flight_goes_while_one_is_under_way_and_waits_while_two_are() {
    let (combiner, field) = Field::new();
    let mut calls: Vec<_> = (0..16).map(|step| begun(&combiner, step)).collect();
    settle().await;
    assert_eq!(field.sent(), [vec![0]]);
    calls.push(begun(&combiner, 16));
    settle().await;
    assert_eq!(field.sent()[1..], [(1..=16).collect::<Vec<_>>()]);
    calls.extend((17..40).map(|step| begun(&combiner, step)));
    settle().await;
    assert_eq!(field.sent().len(), 2);
    field.arrive(3);
    for (call, step) in calls.into_iter().zip(0..) {
        assert_eq!(arrived(call).await, step);
    }
    assert_eq!(field.sent()[2..], [(17..40).collect::<Vec<_>>()]);
}
