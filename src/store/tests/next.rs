//! A settlement that begins the next run of its line, and the undo of a claim.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{Rig, SHORT, again, deferred, done, key, next_run, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, ClaimedRun, EnqueueCommand, JobId, JobPolicy, JobState,
        LockToken, NextClaim, OFFER_TIMEOUT, OnFailure, SettleCommand, SettleOutcome, Settlement,
    },
};

on_every_store!(
    a_long_line_runs_to_its_end,
    repeated_it_tells_of_the_same_run,
    a_late_repetition_begins_nothing,
    a_live_place_comes_first,
    without_a_worker_nothing_begins,
    others_pass_one_that_waits_for_its_retry,
    one_that_was_passed_comes_back_to_its_place,
    jobs_that_may_not_run_are_passed_over,
    one_that_has_crashed_is_left_to_a_visit,
    a_claim_is_undone_by_its_token,
    a_paused_worker_has_lost_its_run,
);

const RETRY: Settlement = Settlement::Retry { delay: SHORT, reason: "status 503" };

fn and_next(call: SettleCommand, me: &LockToken) -> SettleCommand {
    SettleCommand { next_claim: Some(next_run(me)), ..call }
}

/// The next run, which there must be.
async fn settle_and_begin(rig: &Rig, call: SettleCommand) -> ClaimedRun {
    match rig.settle_and_run(call).await {
        SettleOutcome::Settled(Some(run)) => run,
        other => panic!("expected another run, got {other:?}"),
    }
}

async fn nothing_begins(rig: &Rig, call: SettleCommand) {
    assert_eq!(rig.settle_and_run(call).await, SettleOutcome::Settled(None));
}

/// A worker, and jobs of a lock of which the first runs.
async fn line<const N: usize>(rig: &Rig, key: &Key) -> ([JobId; N], LockToken) {
    rig.worker().await;
    let mut ids = Vec::new();
    for _ in 0..N {
        ids.push(rig.put_off(key).await);
    }
    let run = stranger();
    rig.start(key, &ids[0], &run).await;
    (ids.try_into().unwrap(), run)
}

/// Longer than the index of ended jobs is left untrimmed; in between the line is given up to whoever comes.
async fn a_long_line_runs_to_its_end(rig: &Rig) {
    const N: usize = 40;
    let key = key();
    let (ids, mut me) = line::<N>(rig, &key).await;
    for (n, pair) in ids.windows(2).enumerate() {
        let call = settled(&key, &pair[0], &me, done());
        me = stranger();
        if n % 4 == 3 {
            nothing_begins(rig, call).await;
            assert_eq!(rig.start(&key, &pair[1], &me).await, 1);
        } else {
            let run = settle_and_begin(rig, and_next(call.clone(), &me)).await;
            assert_eq!((&run.id, run.attempt, run.has_next), (&pair[1], 1, n + 2 < N));
            let again = settle_and_begin(rig, and_next(call, &me)).await;
            assert!(again.id == run.id && again.fence > run.fence);
        }
        assert_eq!(rig.state(&pair[0]).await, Some(JobState::Done));
        let past = rig.past(&pair[0]).await.unwrap();
        assert!(
            past.recent_runs.len() == 1 && past.recent_runs[0].ends_with(" done"),
            "{:?}",
            past.recent_runs
        );
        // A look at all shards takes as long as some hundred steps.
        if n % 8 < 2 {
            let left: Vec<_> = rig.fsck(false).await.faults().map(|found| found.kind).collect();
            assert_eq!(left, [], "after {n}");
        }
    }
    assert!(rig.finish(&key, &ids[N - 1], &me).await);
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.pending, tally.bytes), (0, 0));
}

async fn repeated_it_tells_of_the_same_run(rig: &Rig) {
    let key = key();
    let ([one, two], first) = line::<2>(rig, &key).await;
    let call = and_next(settled(&key, &one, &first, done()), &stranger());
    let mut fence = 0;
    for _ in 0..3 {
        let run = settle_and_begin(rig, call.clone()).await;
        assert_eq!((&run.id, run.attempt), (&two, 1));
        assert!(run.fence > fence);
        fence = run.fence;
    }
    let past = rig.past(&one).await.unwrap();
    assert_eq!(past.recent_runs.len(), 1, "{past:?}");
    // Another token, or none, is not told of it.
    nothing_begins(rig, and_next(settled(&key, &one, &first, done()), &stranger())).await;
    nothing_begins(rig, settled(&key, &one, &first, done())).await;
    let me = call.next_claim.unwrap().token;
    assert!(rig.finish(&key, &two, &me).await);
}

/// The call was sent twice, and its first copy comes when all it was about is over.
async fn a_late_repetition_begins_nothing(rig: &Rig) {
    let key = key();
    let ([one, two, three], first) = line::<3>(rig, &key).await;
    let second = stranger();
    let call = and_next(settled(&key, &one, &first, done()), &second);
    settle_and_begin(rig, call.clone()).await;
    assert!(rig.finish(&key, &two, &second).await);
    nothing_begins(rig, call).await;
    assert_eq!(rig.state(&three).await, Some(JobState::Queued), "nobody would execute it");
    // So does one for which nothing was there at first.
    let third = stranger();
    rig.start(&key, &three, &third).await;
    let call = and_next(settled(&key, &three, &third, done()), &stranger());
    nothing_begins(rig, call.clone()).await;
    let four = rig.put_off(&key).await;
    nothing_begins(rig, call).await;
    assert_eq!(rig.state(&four).await, Some(JobState::Queued));
}

async fn a_live_place_comes_first(rig: &Rig) {
    let (key, live, run) = (key(), stranger(), stranger());
    rig.worker().await;
    let one = rig.put_off(&key).await;
    rig.start(&key, &one, &run).await;
    rig.join(&key, &live).await;
    let two = rig.put_off(&key).await;
    nothing_begins(rig, and_next(settled(&key, &one, &run, done()), &stranger())).await;
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT, "it was offered it");
    rig.hold(&key, &live).await;
    rig.release(&key, &live).await;
    rig.start(&key, &two, &run).await;
    // One that stands behind the job does not keep it.
    let three = rig.put_off(&key).await;
    rig.join(&key, &live).await;
    let next = settle_and_begin(rig, and_next(settled(&key, &two, &run, done()), &stranger()));
    assert_eq!(next.await.id, three);
}

async fn without_a_worker_nothing_begins(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let (one, two) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.start(&key, &one, &run).await;
    nothing_begins(rig, and_next(settled(&key, &one, &run, done()), &stranger())).await;
    rig.hold(&key, &run).await;
    assert_eq!(rig.state(&two).await, Some(JobState::Queued));
}

/// A job that lets the others pass while it waits for its retry.
fn skipping(key: &Key) -> EnqueueCommand {
    let call = again(key);
    let policy = JobPolicy { on_failure: OnFailure::Skip, max_attempts: 5, ..call.policy };
    EnqueueCommand { policy, ..call }
}

async fn others_pass_one_that_waits_for_its_retry(rig: &Rig) {
    let (key, run, second) = (key(), stranger(), stranger());
    rig.worker().await;
    let call = skipping(&key);
    let failing = call.id.clone();
    rig.enqueue(call).await;
    let other = rig.put_off(&key).await;
    rig.start(&key, &failing, &run).await;
    let next = settle_and_begin(rig, and_next(settled(&key, &failing, &run, RETRY), &second));
    assert_eq!(next.await.id, other);
    let job = rig.job(&failing).await.unwrap();
    assert_eq!((job.state, job.position, job.attempts), (JobState::Queued, None, 1));
    assert!(rig.past(&failing).await.unwrap().due_in.is_some_and(|left| left <= SHORT));
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.pending, tally.delayed, tally.bytes), (2, 1, 14));
    // Repeated, it is the same.
    nothing_begins(rig, settled(&key, &failing, &run, RETRY)).await;
    assert!(rig.finish(&key, &other, &second).await);
    // An uncharged one is passed as well.
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    rig.start(&key, &failing, &second).await;
    let back = Settlement::Postpone { delay: SHORT, reason: "busy" };
    assert!(rig.settle(settled(&key, &failing, &second, back)).await);
    let job = rig.backend().job_view(failing).await.unwrap().unwrap();
    assert_eq!((job.position, job.attempts, job.history.busy_count), (None, 1, 1));
}

async fn one_that_was_passed_comes_back_to_its_place(rig: &Rig) {
    let (key, run, second) = (key(), stranger(), stranger());
    rig.worker().await;
    let call = skipping(&key);
    let failing = call.id.clone();
    rig.enqueue(call).await;
    let (two, three) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.start(&key, &failing, &run).await;
    let call = and_next(settled(&key, &failing, &run, RETRY), &second);
    assert_eq!(settle_and_begin(rig, call.clone()).await.id, two);
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    let positions = [(&failing, Some(1)), (&two, Some(2)), (&three, Some(3))];
    for (id, position) in positions {
        assert_eq!(rig.job(id).await.unwrap().position, position);
    }
    // The run that began meanwhile is told of, undone and settled, though it is not the first any more.
    assert_eq!(settle_and_begin(rig, call).await.id, two);
    assert!(rig.unclaim(&key, &second, None).await);
    assert_eq!(rig.state(&two).await, Some(JobState::Queued));
    let again = stranger();
    rig.start(&key, &failing, &again).await;
    rig.pass(Duration::ZERO).await;
    let call = and_next(settled(&key, &failing, &again, done()), &stranger());
    let next = settle_and_begin(rig, call);
    assert_eq!(next.await.id, two);
}

async fn jobs_that_may_not_run_are_passed_over(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let one = rig.put_off(&key).await;
    rig.start(&key, &one, &run).await;
    let call = deferred(&key);
    let policy = JobPolicy { deadline: Some(SHORT), ..call.policy };
    let expired = call.id.clone();
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let next = rig.put_off(&key).await;
    rig.pass(SHORT).await;
    let call = and_next(settled(&key, &one, &run, done()), &stranger());
    assert_eq!(settle_and_begin(rig, call.clone()).await.id, next);
    let job = rig.job(&expired).await.unwrap();
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Expired, Some("deadline")));
    assert_eq!(rig.tally(key.shard()).await.expired, 1);
    assert_eq!(rig.due(key.shard(), 10).await.names, []);
}

/// Whoever buries it tells of it: the worker of another run would not.
async fn one_that_has_crashed_is_left_to_a_visit(rig: &Rig) {
    let (key, run, dying, second) = (key(), stranger(), stranger(), stranger());
    rig.worker().await;
    let call = skipping(&key);
    let failing = call.id.clone();
    rig.enqueue(call).await;
    let two = rig.put_off(&key).await;
    rig.start(&key, &failing, &run).await;
    let next = NextClaim { lease: SHORT, ..next_run(&dying) };
    let call = SettleCommand { next_claim: Some(next), ..settled(&key, &failing, &run, RETRY) };
    assert_eq!(settle_and_begin(rig, call).await.id, two);
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    rig.start(&key, &failing, &second).await;
    let third = stranger();
    nothing_begins(rig, and_next(settled(&key, &failing, &second, done()), &third)).await;
    assert_eq!(rig.due(key.shard(), 10).await.names, std::slice::from_ref(&key));
    assert_eq!(rig.claim(visit(&key, &two, &third)).await, ClaimOutcome::Ended(two.clone()));
    assert_eq!(rig.state(&two).await, Some(JobState::Dead));
    assert_eq!(rig.due(key.shard(), 10).await.names, []);
}

async fn a_claim_is_undone_by_its_token(rig: &Rig) {
    let key = key();
    let ([one, two], first) = line::<2>(rig, &key).await;
    let second = stranger();
    settle_and_begin(rig, and_next(settled(&key, &one, &first, done()), &second)).await;
    assert!(!rig.unclaim(&key, &stranger(), None).await);
    assert!(rig.unclaim(&key, &second, None).await);
    assert_eq!(rig.state(&two).await, Some(JobState::Queued));
    assert!(!rig.unclaim(&key, &second, Some(&two)).await, "nothing is left of it");
    assert!(!rig.unclaim(&key, &first, None).await, "its run was settled");
    rig.pass(OFFER_TIMEOUT).await;
    assert_eq!(rig.start(&key, &two, &stranger()).await, 1);
}

async fn a_paused_worker_has_lost_its_run(rig: &Rig) {
    let (key, paused, other) = (key(), stranger(), stranger());
    rig.worker().await;
    let call = again(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let next = rig.put_off(&key).await;
    rig.claim(ClaimCommand { lease: SHORT, ..visit(&key, &id, &paused) }).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.start(&key, &id, &other).await, 2);
    let verdict = and_next(settled(&key, &id, &paused, done()), &stranger());
    assert_eq!(rig.settle_and_run(verdict).await, SettleOutcome::RunLost);
    assert!(!rig.unclaim(&key, &paused, None).await);
    let NextClaim { token: me, .. } = next_run(&stranger());
    let run = settle_and_begin(rig, and_next(settled(&key, &id, &other, done()), &me)).await;
    assert_eq!(run.id, next);
    let past = rig.past(&id).await.unwrap();
    let outcomes = past.recent_runs.iter().map(|run| run.splitn(4, ' ').last().unwrap());
    assert_eq!((past.crash_count, Vec::from_iter(outcomes)), (1, vec!["crashed", "done"]));
}
