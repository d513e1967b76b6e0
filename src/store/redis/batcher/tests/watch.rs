//! Who is told that his time is over, and by whom.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, advance, timeout},
};

use super::{Call, DEADLINE, Field, arrived, begun, call, call_within, settle};
use crate::{error::ErrorKind, store::redis::batcher::CallBatcher};

const MS: Duration = Duration::from_millis(1);

/// How long after its call each is told, and of what.
async fn told(calls: Vec<Call>) -> Vec<(ErrorKind, Duration)> {
    let told = calls.into_iter().map(|call| async {
        let error = call.await.unwrap_err();
        (error.kind(), Instant::now())
    });
    let started = Instant::now();
    let told = join_all(told).await;
    told.into_iter().map(|(kind, at)| (kind, at - started)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_is_told_at_his_own_time() {
    let (combiner, _field) = Field::new();
    let flying = begun(&combiner, 1);
    let mut calls = Vec::new();
    for step in 2..12 {
        calls.push(begun(&combiner, step));
        advance(10 * MS).await;
    }
    let told = told(calls).await;
    for (n, told) in (0..).zip(told) {
        let left = DEADLINE - 10 * MS * (10 - n);
        assert_eq!(told, (ErrorKind::Timeout, left), "{n}");
    }
    drop(flying);
}

/// The list is in the order of deadlines; who is no part of that order has a timer of his own.
#[tokio::test(start_paused = true)]
async fn who_has_less_time_than_those_before_him_is_told_before_them() {
    let (combiner, _field) = Field::new();
    let flying = begun(&combiner, 1);
    let calls = vec![
        call_within(&combiner, 2, DEADLINE),
        call_within(&combiner, 3, DEADLINE / 5),
        call_within(&combiner, 4, DEADLINE * 2),
    ];
    let told = told(calls).await;
    let times: Vec<_> = told.iter().map(|(_, time)| *time).collect();
    assert_eq!(times, [DEADLINE, DEADLINE / 5, DEADLINE * 2]);
    drop(flying);
}

/// It has ended when nobody was left to ring for.
#[tokio::test(start_paused = true)]
async fn those_who_come_later_are_told_too() {
    let (combiner, field) = Field::new();
    for _ in 0..3 {
        let calls = [begun(&combiner, 1), begun(&combiner, 2)];
        field.arrive(2);
        for call in calls {
            arrived(call).await;
        }
        advance(3 * DEADLINE).await;
        settle().await;
    }
    let flying = begun(&combiner, 1);
    assert_eq!(told(vec![call(&combiner, 2)]).await, [(ErrorKind::Timeout, DEADLINE)]);
    drop(flying);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// One that flies, and one that waits, on a runtime that does nothing more.
fn left_on_another() -> (Arc<CallBatcher<Field>>, Runtime, [Call; 2]) {
    let (combiner, _) = Field::new();
    let other = runtime();
    let left = other.block_on(async { [begun(&combiner, 1), begun(&combiner, 2)] });
    (combiner, other, left)
}

#[test]
fn a_runtime_that_stands_still_rings_for_nobody() {
    let (combiner, other, left) = left_on_another();
    runtime().block_on(async {
        let told = timeout(4 * DEADLINE, call(&combiner, 3)).await;
        // It went with a flight that does not arrive.
        assert_eq!(told.expect("in time").unwrap_err().kind(), ErrorKind::Timeout);
    });
    drop((left, other));
}

#[test]
fn if_a_runtime_ends_those_it_would_have_rung_for_look_at_their_clocks() {
    let (_combiner, other, [flying, waiting]) = left_on_another();
    drop(other);
    runtime().block_on(async {
        let told = timeout(4 * DEADLINE, waiting).await;
        assert_eq!(told.expect("in time").unwrap_err().kind(), ErrorKind::Unavailable);
    });
    drop(flying);
}
