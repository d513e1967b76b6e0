//! Who is told that his time is over, and by whom.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, advance, timeout},
};

use super::{
    BoxedCall, CALL_TIMEOUT, ScriptedTransport, polled_call, reply_of_first_attempt,
    run_ready_tasks, start_call, start_call_within,
};
use crate::{error::ErrorKind, store::redis::batcher::CallBatcher};

const MILLISECOND: Duration = Duration::from_millis(1);

/// How long after its call each is told, and of what.
async fn errors_with_delays(calls: Vec<BoxedCall>) -> Vec<(ErrorKind, Duration)> {
    let told = calls.into_iter().map(|call| async {
        let error = call.await.unwrap_err();
        (error.kind(), Instant::now())
    });
    let started = Instant::now();
    let told = join_all(told).await;
    told.into_iter().map(|(kind, at)| (kind, at - started)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_call_times_out_at_its_own_deadline() {
    let (combiner, _field) = ScriptedTransport::new_batcher();
    let flying = polled_call(&combiner, 1);
    let mut calls = Vec::new();
    for step in 2..12 {
        calls.push(polled_call(&combiner, step));
        advance(10 * MILLISECOND).await;
    }
    let told = errors_with_delays(calls).await;
    for (n, told) in (0..).zip(told) {
        let left = CALL_TIMEOUT - 10 * MILLISECOND * (10 - n);
        assert_eq!(told, (ErrorKind::Timeout, left), "{n}");
    }
    drop(flying);
}

/// The list is in the order of deadlines; who is no part of that order has a timer of his own.
#[tokio::test(start_paused = true)]
async fn call_with_shorter_deadline_times_out_first() {
    let (combiner, _field) = ScriptedTransport::new_batcher();
    let flying = polled_call(&combiner, 1);
    let calls = vec![
        start_call_within(&combiner, 2, CALL_TIMEOUT),
        start_call_within(&combiner, 3, CALL_TIMEOUT / 5),
        start_call_within(&combiner, 4, CALL_TIMEOUT * 2),
    ];
    let told = errors_with_delays(calls).await;
    let times: Vec<_> = told.iter().map(|(_, time)| *time).collect();
    assert_eq!(times, [CALL_TIMEOUT, CALL_TIMEOUT / 5, CALL_TIMEOUT * 2]);
    drop(flying);
}

/// It has ended when nobody was left to ring for.
#[tokio::test(start_paused = true)]
async fn timer_is_restarted_for_later_calls() {
    let (combiner, field) = ScriptedTransport::new_batcher();
    for _ in 0..3 {
        let calls = [polled_call(&combiner, 1), polled_call(&combiner, 2)];
        field.allow_replies(2);
        for call in calls {
            reply_of_first_attempt(call).await;
        }
        advance(3 * CALL_TIMEOUT).await;
        run_ready_tasks().await;
    }
    let flying = polled_call(&combiner, 1);
    assert_eq!(
        errors_with_delays(vec![start_call(&combiner, 2)]).await,
        [(ErrorKind::Timeout, CALL_TIMEOUT)]
    );
    drop(flying);
}

fn current_thread_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// One that flies, and one that waits, on a runtime that does nothing more.
fn calls_on_stalled_runtime() -> (Arc<CallBatcher<ScriptedTransport>>, Runtime, [BoxedCall; 2]) {
    let (combiner, _) = ScriptedTransport::new_batcher();
    let other = current_thread_runtime();
    let left = other.block_on(async { [polled_call(&combiner, 1), polled_call(&combiner, 2)] });
    (combiner, other, left)
}

#[test]
fn stalled_runtime_does_not_delay_timeouts_elsewhere() {
    let (combiner, other, left) = calls_on_stalled_runtime();
    current_thread_runtime().block_on(async {
        let told = timeout(4 * CALL_TIMEOUT, start_call(&combiner, 3)).await;
        // It went with a flight that does not arrive.
        assert_eq!(told.expect("in time").unwrap_err().kind(), ErrorKind::Timeout);
    });
    drop((left, other));
}

#[test]
fn calls_time_out_after_runtime_of_timer_ends() {
    let (_combiner, other, [flying, waiting]) = calls_on_stalled_runtime();
    drop(other);
    current_thread_runtime().block_on(async {
        let told = timeout(4 * CALL_TIMEOUT, waiting).await;
        assert_eq!(told.expect("in time").unwrap_err().kind(), ErrorKind::Unavailable);
    });
    drop(flying);
}
