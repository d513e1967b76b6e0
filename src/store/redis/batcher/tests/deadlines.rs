//! Outcomes of calls whose deadline passes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::{Instant, advance};

use super::{
    CALL_TIMEOUT, ScriptedTransport, poll_once, polled_call, reply_of_first_attempt,
    run_ready_tasks, start_call, start_call_within,
};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{
        BatchFault, RETRY_PAUSE,
        lane_queue::QueuedCall,
        outcome_cell::{AbandonedCall, OutcomeCell},
    },
};

/// Shorter than the stall timeout of the batcher.
const SHORT_TIMEOUT: Duration = Duration::from_millis(30);

#[tokio::test(start_paused = true)]
async fn unsent_call_past_deadline_reports_not_run() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let first = polled_call(&batcher, 1);
    let queued = start_call_within(&batcher, 2, SHORT_TIMEOUT);
    assert_eq!(queued.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(transport.timeout_count(), 1);
    run_ready_tasks().await;
    transport.allow_replies(1);
    reply_of_first_attempt(start_call(&batcher, 3)).await;
    assert_eq!(transport.sent_batches(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn deadline_starts_when_each_call_is_made() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let first = polled_call(&batcher, 1);
    let one = polled_call(&batcher, 2);
    let started = Instant::now();
    advance(SHORT_TIMEOUT).await;
    let other = crate::store::spawn(start_call(&batcher, 3));
    run_ready_tasks().await;
    transport.allow_replies(1);
    reply_of_first_attempt(first).await;
    run_ready_tasks().await;
    assert_eq!(transport.sent_batches()[1], [2, 3]);
    assert_eq!(one.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed().as_millis(), CALL_TIMEOUT.as_millis());
    // The batch still completes for its other call.
    transport.allow_replies(1);
    assert_eq!(other.await.unwrap().unwrap().first, 3);
}

/// Holds even if the call's timer does not run because its runtime is busy.
#[tokio::test(start_paused = true)]
async fn expired_queued_call_is_not_sent_by_next_batch() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let mut first = polled_call(&batcher, 1);
    let mut queued = start_call_within(&batcher, 2, SHORT_TIMEOUT);
    assert!(poll_once(&mut queued).is_none());
    advance(SHORT_TIMEOUT - Duration::from_millis(1)).await;
    let young = polled_call(&batcher, 3);
    advance(Duration::from_millis(2)).await;
    transport.allow_replies(2);
    assert!(poll_once(&mut first).is_some());
    reply_of_first_attempt(young).await;
    assert_eq!(poll_once(&mut queued).unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(transport.sent_batches(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn never_executed_call_reports_unavailable() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls = [polled_call(&batcher, 1), polled_call(&batcher, 2)];
    (0..100).for_each(|_| transport.push_fault(BatchFault::NotExecuted));
    transport.allow_replies(100);
    for call in calls {
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(transport.timeout_count(), 0);
    // A copy sent at the end of the deadline could get no reply, and put its call in doubt.
    let last_copy_at = CALL_TIMEOUT - RETRY_PAUSE * 2;
    let max_copies = last_copy_at.as_millis().div_ceil(RETRY_PAUSE.as_millis());
    for call in [1, 2] {
        let sent = transport.sent_batches();
        let copies = sent.iter().filter(|batch| batch.contains(&call)).count() as u128;
        assert!(copies <= max_copies, "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_on_lost_connection_reports_timeout() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls = [polled_call(&batcher, 1), polled_call(&batcher, 2)];
    (0..100).for_each(|_| transport.push_fault(BatchFault::ConnectionLost));
    transport.allow_replies(100);
    let outcomes = futures_util::future::join_all(calls).await;
    // Either the second call was sent after the first had failed, too late for a reply, or it was
    // never sent.
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    let sent = transport.sent_batches().iter().any(|commands| commands.contains(&2));
    let kind = if sent { ErrorKind::Timeout } else { ErrorKind::Unavailable };
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), kind);
}

/// To a near server, only the batches that it reads next are sent. More of them would lie in
/// buffers, where their outcome is in doubt.
#[tokio::test(start_paused = true)]
async fn large_backlog_to_silent_server_stays_mostly_unsent() {
    let (batcher, transport) = ScriptedTransport::new_batcher();
    let calls: Vec<_> = (0..900).map(|n| crate::store::spawn(start_call(&batcher, n))).collect();
    run_ready_tasks().await;
    assert!(transport.sent_batches().len() <= 4, "{} flights", transport.sent_batches().len());
    let outcomes = futures_util::future::join_all(calls).await;
    let sent: HashSet<u32> = transport.sent_batches().concat().into_iter().collect();
    assert!(sent.len() < 600, "{} were sent", sent.len());
    for (n, outcome) in (0..900).zip(outcomes) {
        let kind = outcome.expect("no panic").expect_err("nothing is answered").kind();
        let is_sent = sent.contains(&n);
        let expected = if is_sent { ErrorKind::Timeout } else { ErrorKind::Unavailable };
        assert_eq!(kind, expected, "{n}");
    }
}

/// A caller may be dropped at any moment, also while its batch ends.
#[tokio::test]
async fn outcome_cell_stays_sent_only_if_call_may_have_run() {
    let cases = [
        (ErrorKind::Timeout, true),
        (ErrorKind::Protocol, true),
        (ErrorKind::Unavailable, false),
        (ErrorKind::Config, false),
    ];
    for (kind, may_have_run) in cases {
        let (cell, now) = (Arc::new(OutcomeCell::default()), Instant::now());
        let (shared_cell, deadline) = (Arc::clone(&cell), now + CALL_TIMEOUT);
        let mut entry = QueuedCall::<ScriptedTransport> {
            command: 1,
            cell: shared_cell,
            deadline,
            detached: false,
            attempts: 0,
        };
        assert!(entry.try_mark_sent("test", now));
        entry.fail_last_attempt("test", &Error::new(kind, "test"));
        assert_eq!(cell.is_sent(), may_have_run, "{kind:?}");
        match cell.abandon() {
            AbandonedCall::Done(outcome) => {
                assert_eq!(outcome.expect_err("it failed").kind(), kind);
            }
            _ => panic!("no caller received {kind:?}"),
        }
    }
}
