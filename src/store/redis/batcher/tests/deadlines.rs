//! What a caller is told whose time is over.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::{Instant, advance};

use super::{DEADLINE, Field, arrived, begun, call, call_within, poll, settle};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{
        BatchFault,
        lane_queue::QueuedCall,
        outcome_cell::{AbandonedCall, OutcomeCell},
    },
};

/// Before anybody looks why nobody comes.
const SOON: Duration = Duration::from_millis(30);

#[tokio::test(start_paused = true)]
async fn before_it_is_sent_it_has_not_run_and_will_not() {
    let (combiner, field) = Field::new();
    let first = begun(&combiner, 1);
    let queued = call_within(&combiner, 2, SOON);
    assert_eq!(queued.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(field.late(), 1);
    settle().await;
    field.arrive(1);
    arrived(call(&combiner, 3)).await;
    assert_eq!(field.sent(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn each_has_its_own_from_its_call_on() {
    let (combiner, field) = Field::new();
    let first = begun(&combiner, 1);
    let one = begun(&combiner, 2);
    let started = Instant::now();
    advance(SOON).await;
    let other = crate::store::spawn(call(&combiner, 3));
    settle().await;
    field.arrive(1);
    arrived(first).await;
    settle().await;
    assert_eq!(field.sent()[1], [2, 3]);
    assert_eq!(one.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed().as_millis(), DEADLINE.as_millis());
    // The flight goes on for the other one's sake.
    field.arrive(1);
    assert_eq!(other.await.unwrap().unwrap().first, 3);
}

/// Also if nobody looks at its clock: its runtime may be busy.
#[tokio::test(start_paused = true)]
async fn what_is_too_late_is_not_sent_by_others() {
    let (combiner, field) = Field::new();
    let mut first = begun(&combiner, 1);
    let mut queued = call_within(&combiner, 2, SOON);
    assert!(poll(&mut queued).is_none());
    advance(SOON - Duration::from_millis(1)).await;
    let young = begun(&combiner, 3);
    advance(Duration::from_millis(2)).await;
    field.arrive(2);
    assert!(poll(&mut first).is_some());
    arrived(young).await;
    assert_eq!(poll(&mut queued).unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(field.sent(), [vec![1], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn one_that_never_ran_is_not_said_to_have() {
    let (combiner, field) = Field::new();
    let calls = [begun(&combiner, 1), begun(&combiner, 2)];
    (0..100).for_each(|_| field.meets(BatchFault::NotExecuted));
    field.arrive(100);
    for call in calls {
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(field.late(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_cut_off_may_have_run() {
    let (combiner, field) = Field::new();
    let calls = [begun(&combiner, 1), begun(&combiner, 2)];
    (0..100).for_each(|_| field.meets(BatchFault::ConnectionLost));
    field.arrive(100);
    let outcomes = futures_util::future::join_all(calls).await;
    // The second went when the first had given up, and then there was no time left; or it never did.
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    let sent = field.sent().iter().any(|steps| steps.contains(&2));
    let kind = if sent { ErrorKind::Timeout } else { ErrorKind::Unavailable };
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), kind);
}

/// A server that is near is sent no more than it reads next: what lay in the buffers would be in doubt.
#[tokio::test(start_paused = true)]
async fn of_a_crowd_most_wait_unsent() {
    let (combiner, field) = Field::new();
    let calls: Vec<_> = (0..900).map(|n| crate::store::spawn(call(&combiner, n))).collect();
    settle().await;
    assert!(field.sent().len() <= 4, "{} flights", field.sent().len());
    let outcomes = futures_util::future::join_all(calls).await;
    let sent: HashSet<u32> = field.sent().concat().into_iter().collect();
    assert!(sent.len() < 600, "{} were sent", sent.len());
    for (n, outcome) in (0..900).zip(outcomes) {
        let kind = outcome.expect("no panic").expect_err("nothing is answered").kind();
        let is_sent = sent.contains(&n);
        let expected = if is_sent { ErrorKind::Timeout } else { ErrorKind::Unavailable };
        assert_eq!(kind, expected, "{n}");
    }
}

/// Its caller may leave at any moment, also while its flight ends.
#[tokio::test]
async fn what_may_have_run_counts_as_sent_to_the_end() {
    let told = [
        (ErrorKind::Timeout, true),
        (ErrorKind::Protocol, true),
        (ErrorKind::Unavailable, false),
        (ErrorKind::Config, false),
    ];
    for (kind, may_have_run) in told {
        let (ticket, now) = (Arc::new(OutcomeCell::default()), Instant::now());
        let (own, until) = (Arc::clone(&ticket), now + DEADLINE);
        let mut entry = QueuedCall::<Field> {
            command: 1,
            cell: own,
            deadline: until,
            detached: false,
            attempts: 0,
        };
        assert!(entry.try_mark_sent("test", now));
        entry.fail_last_attempt("test", &Error::new(kind, "test"));
        assert_eq!(ticket.is_sent(), may_have_run, "{kind:?}");
        match ticket.abandon() {
            AbandonedCall::Done(outcome) => {
                assert_eq!(outcome.expect_err("it failed").kind(), kind);
            }
            _ => panic!("nobody was told of {kind:?}"),
        }
    }
}
