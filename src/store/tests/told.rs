//! Calls that tell of a job's end: each end makes one a job, in the same step.

mod again;

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, deferred, key, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        MergeMode, MergePolicy, OnFailure, Settlement, StorageLimits, WebhookJobSpec,
    },
};

on_every_store!(
    every_end_makes_the_call_a_job,
    what_has_not_ended_makes_none,
    one_that_supersedes_ends_the_other,
    what_is_put_back_makes_it_again,
    a_call_that_waits_is_not_made_twice,
    a_call_keeps_the_end_that_it_tells_of,
    a_call_runs_as_any_job,
    what_is_purged_is_told_of_no_more,
);

const REQUEST: &[u8] = b"call";

/// A job with a call, and that.
fn called(job: EnqueueCommand) -> (EnqueueCommand, WebhookJobSpec) {
    let key = Key::for_webhook(job.id.as_str(), job.id.shard());
    let envelope = Bytes::from_static(REQUEST);
    let call = WebhookJobSpec { id: JobId::new(&key), key, envelope, max_attempts: 3 };
    (EnqueueCommand { webhook: Some(call.clone()), ..job }, call)
}

async fn store(rig: &Rig, job: EnqueueCommand) -> (JobId, WebhookJobSpec) {
    let (job, call) = called(job);
    let id = job.id.clone();
    let stored = rig.enqueue(job).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    assert_eq!(rig.job(&call.id).await, None, "not before the end");
    (id, call)
}

async fn first(rig: &Rig, key: &Key) -> Option<JobId> {
    rig.heads(std::slice::from_ref(key)).await[0].clone()
}

async fn dies(rig: &Rig, key: &Key, id: &JobId) {
    let run = stranger();
    rig.start(key, id, &run).await;
    let verdict = Settlement::Dead { reason: "auth", retention: LONG };
    assert!(rig.settle(settled(key, id, &run, verdict)).await);
}

async fn every_end_makes_the_call_a_job(rig: &Rig) {
    rig.worker().await;
    let ends = [
        "done",
        "dead",
        "crashed",
        "cancelled",
        "late and cancelled",
        "expired",
        "expired in line",
        "expired when claimed",
        "expired when settled",
    ];
    for end in ends {
        let (key, run) = (key(), stranger());
        let delay = if end.starts_with("late") { LONG } else { std::time::Duration::ZERO };
        let deadline = end.starts_with("expired").then_some(SHORT);
        let job = if end.ends_with("settled") { again(&key) } else { deferred(&key) };
        let policy = JobPolicy { delay, deadline, ..job.policy };
        let (id, call) = store(rig, EnqueueCommand { policy, owner: "ada".into(), ..job }).await;
        let visit = |lease| ClaimCommand { lease, ..visit(&key, &id, &run) };
        match end {
            "done" => {
                rig.start(&key, &id, &run).await;
                assert!(rig.finish(&key, &id, &run).await);
            }
            "dead" => dies(rig, &key, &id).await,
            "crashed" => {
                assert!(matches!(rig.claim(visit(SHORT)).await, ClaimOutcome::Claimed(_)));
                rig.pass(SHORT).await;
                let visited = rig.claim(super::rig::visit(&key, &id, &stranger())).await;
                assert_eq!(visited, ClaimOutcome::Ended(id.clone()));
            }
            "expired" | "expired in line" => {
                rig.pass(SHORT).await;
                rig.due(key.shard(), 10).await;
            }
            "expired when claimed" => {
                rig.pass(SHORT).await;
                assert_eq!(rig.claim(visit(SHORT)).await, ClaimOutcome::Ended(id.clone()));
            }
            "expired when settled" => {
                assert!(matches!(rig.claim(visit(LONG)).await, ClaimOutcome::Claimed(_)));
                rig.pass(SHORT).await;
                let retry = Settlement::Retry { delay: SHORT, reason: "status 503" };
                assert!(rig.settle(settled(&key, &id, &run, retry)).await);
            }
            _ => {
                // Twice is once.
                for _ in 0..2 {
                    assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
                }
            }
        }
        assert!(rig.state(&id).await.is_some_and(|state| !state.is_pending()), "{end}");
        let made = rig.job(&call.id).await.unwrap_or_else(|| panic!("no call: {end}"));
        assert_eq!((made.state, made.position), (JobState::Queued, Some(1)), "{end}");
        assert_eq!(made.owner, "ada", "{end}");
        assert_eq!(first(rig, &call.key).await, Some(call.id.clone()), "{end}");
        assert_eq!(first(rig, &key).await, None, "{end}");
    }
}

async fn what_has_not_ended_makes_none(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let job = again(&key);
    let policy = JobPolicy { on_failure: OnFailure::Skip, max_attempts: 9, ..job.policy };
    let (id, call) = store(rig, EnqueueCommand { policy, ..job }).await;
    rig.start(&key, &id, &run).await;
    let back = Settlement::Postpone { delay: SHORT, reason: "busy" };
    assert!(rig.settle(settled(&key, &id, &run, back)).await);
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    let run = stranger();
    rig.start(&key, &id, &run).await;
    let retry = Settlement::Retry { delay: SHORT, reason: "status 503" };
    assert!(rig.settle(settled(&key, &id, &run, retry)).await);
    assert_eq!(rig.job(&call.id).await, None);
    rig.cancel(&id).await;
    assert_eq!(rig.state(&call.id).await, Some(JobState::Queued));
}

async fn one_that_supersedes_ends_the_other(rig: &Rig) {
    let key = key();
    let merge = || Some(MergePolicy { group: "0f".into(), mode: MergeMode::Supersede });
    let (_, old) = store(rig, EnqueueCommand { merge: merge(), ..deferred(&key) }).await;
    let (_, new) = store(rig, EnqueueCommand { merge: merge(), ..deferred(&key) }).await;
    assert_eq!(rig.state(&old.id).await, Some(JobState::Queued));
    assert_eq!(rig.job(&new.id).await, None);
}

async fn what_is_put_back_makes_it_again(rig: &Rig) {
    let key = key();
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    for _ in 0..3 {
        dies(rig, &key, &id).await;
        let run = stranger();
        assert_eq!(rig.start(&call.key, &call.id, &run).await, 1, "another call, from the first");
        assert!(rig.finish(&call.key, &call.id, &run).await);
        assert_eq!(rig.state(&call.id).await, Some(JobState::Done));
        let redriven = rig.redrive(&id).await;
        assert_eq!(redriven, Some(JobState::Queued));
    }
    rig.cancel(&id).await;
    assert_eq!(rig.state(&call.id).await, Some(JobState::Queued));
}

async fn a_call_that_waits_is_not_made_twice(rig: &Rig) {
    let key = key();
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    dies(rig, &key, &id).await;
    let _ = rig.redrive(&id).await;
    dies(rig, &key, &id).await;
    let run = stranger();
    rig.start(&call.key, &call.id, &run).await;
    assert!(rig.finish(&call.key, &call.id, &run).await);
    assert_eq!(first(rig, &call.key).await, None);
    // Nothing is counted for those that have ended.
    let caps = StorageLimits { shard_jobs: 1, shard_bytes: 100, ..StorageLimits::NONE };
    let stored = rig.enqueue(EnqueueCommand { limits: caps, ..deferred(&key) }).await;
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 });
}

async fn tells(rig: &Rig, call: &WebhookJobSpec) -> Vec<String> {
    let end =
        rig.past(&call.id).await.expect("it is there").webhook_event.expect("it tells of an end");
    let words = end.splitn(5, ' ').enumerate().filter(|(at, _)| *at != 2);
    words.map(|(_, word)| word.to_owned()).collect()
}

async fn a_call_keeps_the_end_that_it_tells_of(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    dies(rig, &key, &id).await;
    assert_eq!(tells(rig, &call).await, ["dead", "1", "0", "auth"]);
    // It has not been made yet: the last end is told.
    let _ = rig.redrive(&id).await;
    rig.start(&key, &id, &run).await;
    assert!(rig.finish(&key, &id, &run).await);
    assert_eq!(tells(rig, &call).await, ["done", "1", "200", ""]);
    assert!(rig.purge(&id).await);
    rig.start(&call.key, &call.id, &stranger()).await;
    assert_eq!(tells(rig, &call).await, ["done", "1", "200", ""], "while it is made, too");
    let (id, call) = store(rig, deferred(&key)).await;
    rig.cancel(&id).await;
    assert_eq!(tells(rig, &call).await, ["cancelled", "0", "0", ""]);
}

async fn a_call_runs_as_any_job(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    rig.cancel(&id).await;
    let visited =
        rig.claim(ClaimCommand { lease: SHORT, ..visit(&call.key, &call.id, &run) }).await;
    let ClaimOutcome::Claimed(run) = visited else { panic!("it is free: {visited:?}") };
    assert_eq!(&*run.envelope, REQUEST);
    // Its worker dies: it may run again.
    rig.pass(SHORT).await;
    let next = stranger();
    assert_eq!(rig.start(&call.key, &call.id, &next).await, 2);
    let retry = Settlement::Retry { delay: SHORT, reason: "not sent" };
    assert!(rig.settle(settled(&call.key, &call.id, &next, retry)).await);
}

async fn what_is_purged_is_told_of_no_more(rig: &Rig) {
    let key = key();
    rig.worker().await;
    let (id, call) = store(rig, deferred(&key)).await;
    dies(rig, &key, &id).await;
    assert!(rig.purge(&id).await);
    assert_eq!(rig.state(&call.id).await, Some(JobState::Queued), "what was to be told is");
}
