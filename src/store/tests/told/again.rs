//! Jobs that are put back and end again, while their call waits or is made.

use bytes::Bytes;

use super::{dies, store};
use crate::{
    Key,
    store::{
        backend::{Call, JobId, JobState, Verdict},
        tests::{
            on_every_store,
            rig::{LONG, Rig, SHORT, deferred, key, settled, stranger},
        },
    },
};

on_every_store!(
    an_end_that_comes_while_it_is_made_is_told_too,
    a_new_end_is_told_with_all_attempts,
);

/// When that was, in us.
async fn tells_of(rig: &Rig, call: &Call) -> u64 {
    let end = rig.past(&call.id).await.expect("it is there").tells.expect("it tells of an end");
    end.split(' ').nth(2).and_then(|at| at.parse().ok()).expect("a time")
}

async fn dies_again(rig: &Rig, key: &Key, id: &JobId) {
    let redriven = rig.backend().redrive(id.clone()).await.unwrap();
    assert_eq!(redriven, Some(JobState::Queued));
    // Each end has a moment of its own.
    rig.pass(SHORT).await;
    dies(rig, key, id).await;
}

/// Whoever brought that end found the call running, and left it to how this ends.
async fn an_end_that_comes_while_it_is_made_is_told_too(rig: &Rig) {
    rig.worker().await;
    for status in [Some(204), None] {
        let key = key();
        let (id, call) = store(rig, deferred(&key)).await;
        dies(rig, &key, &id).await;
        let (run, next) = (stranger(), stranger());
        rig.start(&call.key, &call.id, &run).await;
        let first = tells_of(rig, &call).await;
        dies_again(rig, &key, &id).await;
        let second = tells_of(rig, &call).await;
        assert_ne!(first, second);
        let told = |ended_us, run| {
            let response = status.map(|status| (Bytes::from_static(b"told"), status));
            let verdict = Verdict::Told { ended_us, response, reason: "not sent", retention: LONG };
            settled(&call.key, &call.id, run, verdict)
        };
        for _ in 0..2 {
            assert!(rig.settle(told(first, &run)).await, "also repeated");
        }
        let back = rig.job(&call.id).await.unwrap();
        assert_eq!((back.state, back.attempts), (JobState::Queued, 0));
        assert_eq!(back.reason.as_deref(), Some("ended again"));
        rig.pass(SHORT).await;
        assert_eq!(rig.start(&call.key, &call.id, &next).await, 1);
        assert!(rig.settle(told(second, &next)).await);
        let ended = rig.job(&call.id).await.unwrap();
        let (state, reason) = match status {
            Some(_) => (JobState::Done, None),
            None => (JobState::Dead, Some("not sent")),
        };
        assert_eq!((ended.state, ended.reason.as_deref()), (state, reason));
        assert_eq!(ended.response.as_deref(), status.map(|_| &b"told"[..]));
        dies_again(rig, &key, &id).await;
        assert_eq!(rig.state(&call.id).await, Some(JobState::Queued), "another call");
    }
}

async fn a_new_end_is_told_with_all_attempts(rig: &Rig) {
    let key = key();
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    dies(rig, &key, &id).await;
    for attempt in 1..=2 {
        let run = stranger();
        assert_eq!(rig.start(&call.key, &call.id, &run).await, attempt);
        let retry = Verdict::Retry { delay: SHORT, reason: "not sent" };
        assert!(rig.settle(settled(&call.key, &call.id, &run, retry)).await);
        rig.pass(SHORT).await;
    }
    dies_again(rig, &key, &id).await;
    assert_eq!(rig.start(&call.key, &call.id, &stranger()).await, 1);
}
