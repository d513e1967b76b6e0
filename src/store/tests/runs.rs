//! Running a job: claim, settle, backoff, crash.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, ask, done, key, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{
        ActiveRun, ClaimCommand, ClaimOutcome, ClaimedRun, EnqueueCommand, JobId, JobPolicy,
        JobState, LeaseRenewal, LockMode, LockToken, OFFER_TIMEOUT, OnFailure, ReleaseOutcome,
        Settlement,
    },
};

on_every_store!(
    a_repeated_claim_is_the_same_run,
    a_repeated_claim_is_the_same_run_behind_an_older_job,
    a_late_claim_starts_no_second_run,
    done_stores_the_answer_for_its_time,
    settling_twice_is_once,
    settling_needs_the_token,
    settling_needs_the_lock,
    a_backoff_hides_the_whole_line,
    a_crashed_job_that_must_not_run_again_is_dead,
    a_crashed_job_has_a_last_attempt,
    of_a_crashed_job_past_its_deadline_no_request_is_kept,
    a_job_whose_run_is_dropped_is_still_first,
    renewal_keeps_job_and_lock,
    what_runs_is_told_for_as_long_as_its_lock_is_held,
);

const RETRY: Settlement = Settlement::Retry { delay: SHORT, reason: "status 503" };
const BACK: Settlement = Settlement::ReturnToQueue { delay: SHORT, reason: "drained" };

async fn a_repeated_claim_is_the_same_run(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = rig.put_off(&key).await;
    let mut fences = Vec::new();
    for _ in 0..3 {
        match rig.claim(visit(&key, &id, &run)).await {
            ClaimOutcome::Claimed(ClaimedRun { fence, attempt: 1, envelope, .. }) => {
                assert_eq!(envelope, "request");
                fences.push(fence);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert!(rig.finish(&key, &id, &run).await);
}

/// One that has come back to its place meanwhile.
async fn a_repeated_claim_is_the_same_run_behind_an_older_job(rig: &Rig) {
    let (key, first, run) = (key(), stranger(), stranger());
    rig.worker().await;
    let call = again(&key);
    let older = call.id.clone();
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let id = rig.put_off(&key).await;
    rig.start(&key, &older, &first).await;
    assert!(rig.settle(settled(&key, &older, &first, RETRY)).await);
    rig.start(&key, &id, &run).await;
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(older.clone())]);
    match rig.claim(visit(&key, &id, &run)).await {
        ClaimOutcome::Claimed(begun) => assert_eq!((begun.id, begun.attempt), (id.clone(), 1)),
        other => panic!("{other:?}"),
    }
    let other = rig.claim(visit(&key, &id, &stranger())).await;
    assert_eq!(other, ClaimOutcome::NotFirst(older.clone()));
    assert!(rig.finish(&key, &id, &run).await);
    let over = rig.claim(visit(&key, &id, &run)).await;
    assert_eq!(over, ClaimOutcome::NotFirst(older), "its run is over");
}

/// A claim that was sent twice, over a connection that broke: the first one arrives when its run is over.
async fn a_late_claim_starts_no_second_run(rig: &Rig) {
    let key = key();
    let call = again(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    for end in ["settled", "given back", "lost"] {
        let run = stranger();
        start_short(rig, &key, &id, &run).await;
        match end {
            "settled" => assert!(rig.settle(settled(&key, &id, &run, BACK)).await),
            "given back" => assert_eq!(rig.release(&key, &run).await, ReleaseOutcome::Released),
            _ => {}
        }
        rig.pass(SHORT).await;
        let before = rig.job(&id).await;
        let late = rig.claim(visit(&key, &id, &run)).await;
        assert_eq!(late, ClaimOutcome::Busy(OFFER_TIMEOUT), "{end}");
        assert_eq!(rig.job(&id).await, before, "{end}");
    }
    assert_eq!(rig.start(&key, &id, &stranger()).await, 3);
}

async fn done_stores_the_answer_for_its_time(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = rig.put_off(&key).await;
    rig.start(&key, &id, &run).await;
    let verdict = Settlement::Done { response: "made".into(), status: 200, retention: SHORT };
    assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
    let job = rig.job(&id).await.unwrap();
    assert_eq!((job.state, job.attempts, job.position), (JobState::Done, 1, None));
    assert_eq!((job.reason, job.response), (None, Some("made".into())));
    rig.pass(SHORT / 2).await;
    assert!(rig.job(&id).await.is_some());
    rig.pass(SHORT / 2).await;
    assert_eq!(rig.job(&id).await, None);
    assert_eq!(rig.release(&key, &run).await, ReleaseOutcome::NotFound, "settling gave it back");
}

async fn settling_twice_is_once(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let (first, second) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.start(&key, &first, &run).await;
    assert!(rig.settle(settled(&key, &first, &run, RETRY)).await);
    assert!(rig.settle(settled(&key, &first, &run, done())).await, "a repeated call");
    assert_eq!(rig.state(&first).await, Some(JobState::Queued));
    rig.pass(SHORT).await;
    let run = stranger();
    assert_eq!(rig.start(&key, &first, &run).await, 2);
    assert!(rig.finish(&key, &first, &run).await);
    assert!(rig.finish(&key, &first, &run).await);
    assert_eq!(rig.job(&second).await.unwrap().position, Some(1), "ended once");
}

async fn settling_needs_the_token(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = rig.put_off(&key).await;
    assert!(!rig.finish(&key, &id, &run).await, "not claimed");
    rig.start(&key, &id, &run).await;
    assert!(!rig.finish(&key, &id, &stranger()).await);
    assert!(!rig.finish(&key, &JobId::new(&key), &run).await);
    assert_eq!(rig.state(&id).await, Some(JobState::Running));
    assert!(rig.finish(&key, &id, &run).await);
}

/// A run whose lease is short.
async fn start_short(rig: &Rig, key: &Key, id: &JobId, run: &LockToken) -> ClaimOutcome {
    rig.claim(ClaimCommand { lease: SHORT, ..visit(key, id, run) }).await
}

async fn settling_needs_the_lock(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = rig.put_off(&key).await;
    start_short(rig, &key, &id, &run).await;
    rig.pass(SHORT).await;
    assert!(!rig.finish(&key, &id, &run).await, "its lease had ended");
    assert_eq!(rig.state(&id).await, Some(JobState::Running));
    let id = rig.put_off(&Key::path_param("id", "8")).await;
    let key = Key::path_param("id", "8");
    rig.start(&key, &id, &run).await;
    rig.release(&key, &run).await;
    assert!(!rig.finish(&key, &id, &run).await, "it was given back");
    // Another copy of the claim makes no lease shorter.
    let run = stranger();
    let id = rig.put_off(&Key::path_param("id", "9")).await;
    let key = Key::path_param("id", "9");
    rig.start(&key, &id, &run).await;
    start_short(rig, &key, &id, &run).await;
    rig.pass(SHORT).await;
    assert!(rig.finish(&key, &id, &run).await, "it had the longer one");
}

async fn a_backoff_hides_the_whole_line(rig: &Rig) {
    let (key, run, a) = (key(), stranger(), stranger());
    rig.worker().await;
    let (first, second) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.start(&key, &first, &run).await;
    rig.settle(settled(&key, &first, &run, RETRY)).await;
    let ahead = rig.claim(visit(&key, &second, &stranger())).await;
    assert_eq!(ahead, ClaimOutcome::NotFirst(first.clone()), "no later job starts before it");
    rig.hold(&key, &a).await;
    rig.release(&key, &a).await;
    rig.hold(&key, &a).await;
    rig.pass(SHORT).await;
    rig.release(&key, &a).await;
    assert!(rig.refused(&key, &a).await <= OFFER_TIMEOUT, "the backoff is over");
    assert_eq!(rig.start(&key, &first, &stranger()).await, 2);
}

async fn a_crashed_job_that_must_not_run_again_is_dead(rig: &Rig) {
    let (key, paused, b) = (key(), stranger(), stranger());
    rig.worker().await;
    let (first, second) = (rig.put_off(&key).await, rig.put_off(&key).await);
    start_short(rig, &key, &first, &paused).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.due(key.shard(), 10).await.names, vec![key.clone()]);
    let visited = rig.claim(visit(&key, &first, &b)).await;
    assert_eq!(visited, ClaimOutcome::Ended(first.clone()));
    let job = rig.job(&first).await.unwrap();
    assert_eq!((job.state, job.position), (JobState::Dead, None));
    assert_eq!(job.reason.as_deref(), Some("crashed, may have run"));
    // The worker was only slow: it must learn that nothing of its verdict stands.
    assert!(!rig.finish(&key, &first, &paused).await);
    assert_eq!(rig.state(&first).await, Some(JobState::Dead));
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start(&key, &second, &b).await, 1);
    rig.pass(LONG).await;
    assert_eq!(rig.job(&first).await, None);
}

async fn of_a_crashed_job_past_its_deadline_no_request_is_kept(rig: &Rig) {
    let key = key();
    let call = again(&key);
    let policy = JobPolicy { max_attempts: 5, deadline: Some(2 * SHORT), ..call.policy };
    let (id, call) = (call.id.clone(), EnqueueCommand { policy, ..call });
    rig.enqueue(call).await;
    let run = ClaimCommand { lease: SHORT, ..visit(&key, &id, &stranger()) };
    assert!(matches!(rig.claim(run).await, ClaimOutcome::Claimed(_)));
    rig.pass(3 * SHORT).await;
    assert_eq!(rig.claim(visit(&key, &id, &stranger())).await, ClaimOutcome::Ended(id.clone()));
    assert_eq!(rig.state(&id).await, Some(JobState::Expired));
    assert_eq!(rig.backend().job_envelope(id).await.unwrap(), None);
}

async fn a_crashed_job_has_a_last_attempt(rig: &Rig) {
    let key = key();
    let call = EnqueueCommand {
        policy: JobPolicy { max_attempts: 2, ..again(&key).policy },
        ..again(&key)
    };
    let id = call.id.clone();
    rig.enqueue(call).await;
    for attempt in 1..=2 {
        match start_short(rig, &key, &id, &stranger()).await {
            ClaimOutcome::Claimed(ClaimedRun { attempt: got, .. }) => assert_eq!(got, attempt),
            other => panic!("{other:?}"),
        }
        rig.pass(SHORT).await;
    }
    let visited = rig.claim(visit(&key, &id, &stranger())).await;
    assert_eq!(visited, ClaimOutcome::Ended(id.clone()));
    assert_eq!(rig.job(&id).await.unwrap().attempts, 2);
}

async fn a_job_whose_run_is_dropped_is_still_first(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let call = again(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.start(&key, &id, &run).await;
    assert_eq!(rig.release(&key, &run).await, ReleaseOutcome::Released);
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start(&key, &id, &stranger()).await, 2);
}

async fn renewal_keeps_job_and_lock(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = rig.put_off(&key).await;
    start_short(rig, &key, &id, &run).await;
    let renewal = LeaseRenewal {
        key: key.clone(),
        token: run.clone(),
        mode: LockMode::Exclusive,
        lease: LONG,
        job: Some(id.clone()),
    };
    assert_eq!(rig.renew(vec![renewal.clone()]).await, [true]);
    // What comes late shortens nothing: an older renewal, and another copy of the claim.
    assert_eq!(rig.renew(vec![LeaseRenewal { lease: SHORT, ..renewal }]).await, [true]);
    start_short(rig, &key, &id, &run).await;
    rig.pass(SHORT).await;
    let due = rig.due(key.shard(), 10).await;
    assert_eq!(due.names, [], "a worker would look in vain");
    assert!(due.next.is_some_and(|next| next > LONG - SHORT - Duration::from_secs(5)));
    assert!(
        rig.acquire(ask(&key, &stranger())).await != crate::store::AcquireReply::AlreadyAccepted
    );
    assert!(rig.finish(&key, &id, &run).await);
}

/// By the store's clock alone: whoever asks may hear of a run that its own worker still believes in.
async fn what_runs_is_told_for_as_long_as_its_lock_is_held(rig: &Rig) {
    let key = key();
    let call = again(&key);
    let id = call.id.clone();
    let running = || async { rig.backend().active_run(id.clone()).await.unwrap() };
    assert_eq!(running().await, None, "nobody knows it");
    rig.enqueue(call).await;
    assert_eq!(running().await, None, "it waits");
    let mut last = 0;
    for (end, attempt) in [("handed over", 1), ("lapsed", 1), ("done", 2)] {
        let run = stranger();
        let ClaimOutcome::Claimed(begun) = rig.claim(visit(&key, &id, &run)).await else {
            panic!("it is free")
        };
        let told = running().await.expect("it runs");
        assert_eq!(told, ActiveRun { attempt, first_fence: begun.fence }, "{end}");
        assert!(told.first_fence > last, "{end}");
        last = begun.fence;
        let ClaimOutcome::Claimed(repeated) = rig.claim(visit(&key, &id, &run)).await else {
            panic!("it is its own")
        };
        assert!(repeated.fence > last, "the same run, by a larger fence");
        assert_eq!(running().await, Some(told), "{end}");
        match end {
            "handed over" => assert!(rig.settle(settled(&key, &id, &run, BACK)).await),
            "lapsed" => {}
            _ => assert!(rig.finish(&key, &id, &run).await),
        }
        let before = if end == "lapsed" { Some(told) } else { None };
        assert_eq!(running().await, before, "{end}");
        rig.pass(LONG).await;
        assert_eq!(running().await, None, "{end}");
    }
}
