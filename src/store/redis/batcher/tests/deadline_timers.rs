//! Timeouts of calls, and the timer that reports them.

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

/// Returns the error of each call, and the delay after which it was reported.
async fn errors_with_delays(calls: Vec<BoxedCall>) -> Vec<(ErrorKind, Duration)> {
    let outcomes = calls.into_iter().map(|call| async {
        let error = call.await.unwrap_err();
        (error.kind(), Instant::now())
    });
    let started = Instant::now();
    let outcomes = join_all(outcomes).await;
    outcomes.into_iter().map(|(kind, at)| (kind, at - started)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_call_times_out_at_its_own_deadline() {
    let (batcher, _field) = ScriptedTransport::new_batcher();
    let in_flight = polled_call(&batcher, 1);
    let mut calls = Vec::new();
    for command in 2..12 {
        calls.push(polled_call(&batcher, command));
        advance(10 * MILLISECOND).await;
    }
    let outcomes = errors_with_delays(calls).await;
    for (n, outcome) in (0..).zip(outcomes) {
        let remaining = CALL_TIMEOUT - 10 * MILLISECOND * (10 - n);
        assert_eq!(outcome, (ErrorKind::Timeout, remaining), "{n}");
    }
    drop(in_flight);
}

/// The timer's list is ordered by deadline. A call that does not fit that order has a timer of its
/// own.
#[tokio::test(start_paused = true)]
async fn call_with_shorter_deadline_times_out_first() {
    let (batcher, _field) = ScriptedTransport::new_batcher();
    let in_flight = polled_call(&batcher, 1);
    let calls = vec![
        start_call_within(&batcher, 2, CALL_TIMEOUT),
        start_call_within(&batcher, 3, CALL_TIMEOUT / 5),
        start_call_within(&batcher, 4, CALL_TIMEOUT * 2),
    ];
    let outcomes = errors_with_delays(calls).await;
    let times: Vec<_> = outcomes.iter().map(|(_, time)| *time).collect();
    assert_eq!(times, [CALL_TIMEOUT, CALL_TIMEOUT / 5, CALL_TIMEOUT * 2]);
    drop(in_flight);
}

/// The timer ends when no call is left. A later call starts it again.
#[tokio::test(start_paused = true)]
async fn timer_is_restarted_for_later_calls() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    for _ in 0..3 {
        let calls = [polled_call(&batcher, 1), polled_call(&batcher, 2)];
        transport.allow_replies(2);
        for call in calls {
            reply_of_first_attempt(call).await;
        }
        advance(3 * CALL_TIMEOUT).await;
        run_ready_tasks().await;
    }
    let in_flight = polled_call(&batcher, 1);
    assert_eq!(
        errors_with_delays(vec![start_call(&batcher, 2)]).await,
        [(ErrorKind::Timeout, CALL_TIMEOUT)]
    );
    drop(in_flight);
}

fn current_thread_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns a sent call and a queued one, on a runtime that runs no further task.
fn calls_on_stalled_runtime() -> (Arc<CallBatcher<ScriptedTransport>>, Runtime, [BoxedCall; 2]) {
    let (batcher, _) = ScriptedTransport::new_batcher();
    let stalled = current_thread_runtime();
    let calls = stalled.block_on(async { [polled_call(&batcher, 1), polled_call(&batcher, 2)] });
    (batcher, stalled, calls)
}

#[test]
fn stalled_runtime_does_not_delay_timeouts_of_others() {
    let (batcher, stalled, calls) = calls_on_stalled_runtime();
    current_thread_runtime().block_on(async {
        let outcome = timeout(4 * CALL_TIMEOUT, start_call(&batcher, 3)).await;
        // The call was sent in a batch that gets no reply.
        assert_eq!(outcome.expect("in time").unwrap_err().kind(), ErrorKind::Timeout);
    });
    drop((calls, stalled));
}

#[test]
fn calls_time_out_after_runtime_of_timer_ends() {
    let (_combiner, stalled, [in_flight, queued]) = calls_on_stalled_runtime();
    drop(stalled);
    current_thread_runtime().block_on(async {
        let outcome = timeout(4 * CALL_TIMEOUT, queued).await;
        assert_eq!(outcome.expect("in time").unwrap_err().kind(), ErrorKind::Unavailable);
    });
    drop(in_flight);
}
