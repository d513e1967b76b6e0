//! Jobs that are put back and end again, while their call waits or is made.

use std::time::Duration;

use bytes::Bytes;

use super::{REQUEST, dies, store};
use crate::{
    Key,
    store::{
        backend::{
            ClaimOutcome, EnqueueCommand, JobId, JobState, Settlement, StorageLimits,
            WebhookJobSpec,
        },
        tests::{
            on_every_store,
            rig::{LONG, Rig, SHORT, deferred, key, neighbours, settled, stranger, visit},
        },
    },
};

on_every_store!(
    an_end_that_comes_while_it_is_made_is_told_too,
    a_new_end_is_told_with_all_attempts,
    one_that_was_forgotten_waits_as_any,
);

/// When that was, in us.
async fn tells_of(rig: &Rig, call: &WebhookJobSpec) -> u64 {
    let end =
        rig.past(&call.id).await.expect("it is there").webhook_event.expect("it tells of an end");
    end.split(' ').nth(2).and_then(|at| at.parse().ok()).expect("a time")
}

async fn dies_again(rig: &Rig, key: &Key, id: &JobId) {
    let redriven = rig.redrive(id).await;
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
            let verdict = Settlement::WebhookSettled {
                ended_us,
                response,
                reason: "not sent",
                retention: LONG,
            };
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
        let retry = Settlement::Retry { delay: SHORT, reason: "not sent" };
        assert!(rig.settle(settled(&call.key, &call.id, &run, retry)).await);
        rig.pass(SHORT).await;
    }
    dies_again(rig, &key, &id).await;
    assert_eq!(rig.start(&call.key, &call.id, &stranger()).await, 1);
}

async fn is_done(rig: &Rig, key: &Key, id: &JobId, retention: Duration) {
    let run = stranger();
    rig.start(key, id, &run).await;
    let verdict = Settlement::Done { response: "x".into(), status: 200, retention };
    assert!(rig.settle(settled(key, id, &run, verdict)).await);
}

/// Its time has taken what was kept of the first one, and may have left its entry among those that are done: whoever
/// makes room there must not find it.
async fn one_that_was_forgotten_waits_as_any(rig: &Rig) {
    let [key, other] = neighbours::<2>();
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    dies(rig, &key, &id).await;
    // What is kept for longer keeps the entries.
    let stays = rig.put_off(&other).await;
    is_done(rig, &other, &stays, LONG).await;
    is_done(rig, &call.key, &call.id, SHORT).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.job(&call.id).await, None, "it is forgotten");
    dies_again(rig, &key, &id).await;
    assert_eq!(rig.state(&call.id).await, Some(JobState::Queued));
    let caps = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    let last = EnqueueCommand { limits: caps, ..deferred(&other) };
    let _ = rig.enqueue(last.clone()).await;
    is_done(rig, &other, &last.id, LONG).await;
    assert_eq!(rig.state(&stays).await, None, "room was made");
    assert_eq!(rig.state(&call.id).await, Some(JobState::Queued));
    let claimed = rig.claim(visit(&call.key, &call.id, &stranger())).await;
    let ClaimOutcome::Claimed(run) = claimed else { panic!("it is there: {claimed:?}") };
    assert_eq!(&*run.envelope, REQUEST);
}
