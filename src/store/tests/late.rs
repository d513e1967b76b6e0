//! Requests that wait for a time, and those whose time runs out.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, ask, deferred, key, neighbours, settled, stranger, visit},
};
use crate::{
    Key,
    clock::saturating_micros,
    store::backend::{
        AcquireCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        NodeId, OFFER_TIMEOUT, SHARD_VACANCY_GRACE, Settlement, StorageLimits,
    },
};

on_every_store!(
    a_late_job_stands_in_no_line,
    a_late_job_never_comes_too_soon,
    a_late_job_comes_back_to_its_own_place,
    a_late_job_gets_a_free_lock_at_once,
    a_late_job_leaves_a_backoff_behind_it_as_it_is,
    coming_back_first_it_takes_the_offer,
    many_late_jobs_come_back_in_turns,
    late_jobs_count_towards_the_caps,
    what_is_not_charged_is_no_attempt_past_the_deadline_either,
    the_next_look_is_for_what_comes_first,
    without_a_worker_it_is_not_stored,
    a_shard_on_its_way_to_another_worker_has_one,
);

/// A delay ends with one, so that it is never shorter.
const MS: Duration = Duration::from_millis(1);

fn delayed(key: &Key, delay: Duration) -> EnqueueCommand {
    let call = deferred(key);
    EnqueueCommand { policy: JobPolicy { delay, ..call.policy }, ..call }
}

fn until(key: &Key, deadline: Duration) -> EnqueueCommand {
    let call = again(key);
    EnqueueCommand { policy: JobPolicy { deadline: Some(deadline), ..call.policy }, ..call }
}

async fn stored(rig: &Rig, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = rig.enqueue(call).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

async fn position(rig: &Rig, id: &JobId) -> Option<u64> {
    rig.job(id).await.expect("it is kept").position
}

async fn state(rig: &Rig, id: &JobId) -> (JobState, Option<String>) {
    let job = rig.job(id).await.expect("it is kept");
    (job.state, job.reason)
}

/// All that is due, as a worker would ask.
async fn look(rig: &Rig, key: &Key) -> Vec<Key> {
    rig.due(key.shard(), 10).await.names
}

async fn a_late_job_stands_in_no_line(rig: &Rig) {
    let (key, a) = (key(), stranger());
    rig.worker().await;
    let call = delayed(&key, LONG);
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 0 });
    assert_eq!(state(rig, &call.id).await.0, JobState::Queued);
    assert_eq!(position(rig, &call.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    // Nobody waits for it, and nothing is to be seen to.
    rig.hold(&key, &a).await;
    rig.release(&key, &a).await;
    let due = rig.due(key.shard(), 10).await;
    assert_eq!(due.names, []);
    assert!(due.next.is_some_and(|next| next > LONG / 2 && next <= LONG + MS), "{due:?}");
}

/// Nor by a part of a millisecond, in which times are stored.
async fn a_late_job_never_comes_too_soon(rig: &Rig) {
    let key = key();
    rig.pass(MS * 9 / 10).await;
    let id = stored(rig, delayed(&key, LONG)).await;
    let next = rig.due(key.shard(), 10).await.next.expect("it is to come");
    let now = rig.backend().server_time_us().await.unwrap();
    let job = rig.backend().job_view(id).await.unwrap();
    let accepted = job.expect("it is kept").history.accepted_us;
    assert!(
        now + saturating_micros(next) >= accepted + saturating_micros(LONG),
        "{now} {next:?} {accepted}"
    );
}

async fn a_late_job_comes_back_to_its_own_place(rig: &Rig) {
    let (key, a) = (key(), stranger());
    rig.worker().await;
    rig.hold(&key, &a).await;
    let first = rig.put_off(&key).await;
    let late = stored(rig, delayed(&key, SHORT)).await;
    let last = rig.put_off(&key).await;
    assert_eq!(position(rig, &last).await, Some(2));
    rig.pass(SHORT).await;
    // Its time alone does nothing: somebody has to look.
    assert_eq!(position(rig, &late).await, None);
    look(rig, &key).await;
    look(rig, &key).await;
    for (at, id) in (1..).zip([first, late, last]) {
        assert_eq!(position(rig, &id).await, Some(at));
    }
}

async fn a_late_job_gets_a_free_lock_at_once(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let id = stored(rig, delayed(&key, SHORT)).await;
    rig.pass(SHORT).await;
    let due = rig.backend().poll_due(vec![key.shard()], 10).await.unwrap().remove(0);
    assert_eq!(due.locks, [(key.clone(), Some(id.clone()))], "it is named with its first job");
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT, "it was offered it");
    rig.start(&key, &id, &run).await;
    assert!(rig.finish(&key, &id, &run).await);
    assert_eq!(look(rig, &key).await, []);
}

/// As long as the handler has asked for, whatever comes in front of it, fails there, and ends.
async fn a_late_job_leaves_a_backoff_behind_it_as_it_is(rig: &Rig) {
    let key = key();
    rig.worker().await;
    let older = stored(rig, delayed(&key, SHORT)).await;
    let id = rig.put_off(&key).await;
    let run = stranger();
    rig.start(&key, &id, &run).await;
    let asked = Settlement::Retry { delay: LONG, reason: "status 503" };
    assert!(rig.settle(settled(&key, &id, &run, asked)).await);
    rig.pass(SHORT).await;
    look(rig, &key).await;
    let run = stranger();
    rig.start(&key, &older, &run).await;
    let busy = Settlement::Postpone { delay: SHORT, reason: "busy" };
    assert!(rig.settle(settled(&key, &older, &run, busy)).await);
    let due_in = async |id| rig.past(id).await.expect("it waits").due_in;
    assert!(due_in(&older).await.is_some_and(|left| left < LONG / 2));
    assert!(due_in(&id).await.is_some_and(|left| left > LONG / 2));
    rig.pass(SHORT).await;
    let run = stranger();
    rig.start(&key, &older, &run).await;
    assert!(rig.finish(&key, &older, &run).await);
    match rig.claim(visit(&key, &id, &stranger())).await {
        ClaimOutcome::NotDue(left) => assert!(left > LONG / 2, "{left:?}"),
        other => panic!("{other:?}"),
    }
    rig.pass(LONG).await;
    assert_eq!(rig.start(&key, &id, &stranger()).await, 2);
}

async fn many_late_jobs_come_back_in_turns(rig: &Rig) {
    let key = key();
    let caps = StorageLimits {
        resource_jobs: 300,
        resource_bytes: 9999,
        shard_jobs: 400,
        shard_bytes: 9999,
        ..StorageLimits::NONE
    };
    for _ in 0..250 {
        stored(rig, EnqueueCommand { limits: caps, ..delayed(&key, SHORT) }).await;
    }
    rig.pass(SHORT).await;
    for left in [150, 50, 0] {
        let due = rig.due(key.shard(), 10).await;
        assert_eq!(due.next, (left > 0).then_some(Duration::ZERO), "{left} are left");
        assert_eq!(due.names, std::slice::from_ref(&key));
    }
    let last = stored(rig, EnqueueCommand { limits: caps, ..deferred(&key) }).await;
    assert_eq!(position(rig, &last).await, Some(251));
}

async fn late_jobs_count_towards_the_caps(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = StorageLimits {
        resource_jobs: 2,
        resource_bytes: 14,
        shard_jobs: 3,
        shard_bytes: 21,
        ..StorageLimits::NONE
    };
    let late = |key: &Key| EnqueueCommand { limits: caps, ..delayed(key, LONG) };
    let first = stored(rig, late(&one)).await;
    stored(rig, EnqueueCommand { limits: caps, ..deferred(&one) }).await;
    assert_eq!(rig.enqueue(late(&one)).await, EnqueueOutcome::Full);
    assert_eq!(
        rig.enqueue(EnqueueCommand { limits: caps, ..deferred(&one) }).await,
        EnqueueOutcome::Full
    );
    stored(rig, late(&two)).await;
    assert_eq!(rig.enqueue(late(&two)).await, EnqueueOutcome::Full);
    rig.cancel(&first).await;
    stored(rig, late(&one)).await;
    let bytes = StorageLimits { resource_jobs: 9, shard_jobs: 9, ..caps };
    assert_eq!(
        rig.enqueue(EnqueueCommand { limits: bytes, ..deferred(&one) }).await,
        EnqueueOutcome::Full
    );
}

async fn the_next_look_is_for_what_comes_first(rig: &Rig) {
    let [one, two, three] = neighbours::<3>();
    let next = async || rig.due(one.shard(), 10).await.next.unwrap();
    stored(rig, until(&one, LONG)).await;
    rig.hold(&one, &stranger()).await;
    look(rig, &one).await;
    assert!(next().await > LONG / 2);
    stored(rig, delayed(&two, LONG / 3)).await;
    assert!(next().await <= LONG / 3 + MS);
    rig.acquire(AcquireCommand { lease: LONG / 10, ..ask(&three, &stranger()) }).await;
    rig.put_off(&three).await;
    assert!(next().await <= LONG / 10);
    rig.pass(LONG / 10).await;
    assert!(next().await > LONG / 10, "what is due is named, and not to come");
}

async fn without_a_worker_it_is_not_stored(rig: &Rig) {
    let key = key();
    let mut call = deferred(&key);
    call.policy.needs_worker = true;
    call.idempotency_record = Some(("idem".into(), "print".into(), LONG));
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::NoWorker);
    assert_eq!(rig.job(&call.id).await, None);
    // What a dead one leaves is no worker either.
    rig.worker().await;
    rig.advance(LONG).await;
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::NoWorker);
    rig.worker().await;
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
}

async fn a_shard_on_its_way_to_another_worker_has_one(rig: &Rig) {
    let (a, b) = (NodeId::new(), NodeId::new());
    let id = rig.put_off(&key()).await;
    rig.beat(&a, LONG).await;
    rig.beat(&b, LONG).await;
    let needs = || {
        let mut call = deferred(&key());
        call.policy.needs_worker = true;
        call
    };
    // It leaves its shards to the other, who is there and has not come for them yet.
    rig.beat(&a, Duration::ZERO).await;
    assert!(rig.job(&id).await.unwrap().is_watched);
    assert!(matches!(rig.enqueue(needs()).await, EnqueueOutcome::Stored { .. }));
    // Who does not come is not there.
    rig.pass(SHARD_VACANCY_GRACE).await;
    assert!(!rig.job(&id).await.unwrap().is_watched);
    assert_eq!(rig.enqueue(needs()).await, EnqueueOutcome::NoWorker);
    assert_eq!(rig.beat(&b, LONG).await.own_shards.len(), 64);
    assert!(rig.job(&id).await.unwrap().is_watched);
    // Nobody comes after the last.
    rig.beat(&b, Duration::ZERO).await;
    assert!(!rig.job(&id).await.unwrap().is_watched);
}

async fn coming_back_first_it_takes_the_offer(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let late = stored(rig, delayed(&key, SHORT)).await;
    rig.pass(SHORT).await;
    // It is offered to this one, whose turn it was until now.
    let other = rig.put_off(&key).await;
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT);
    look(rig, &key).await;
    assert_eq!(rig.claim(visit(&key, &other, &run)).await, ClaimOutcome::NotFirst(late.clone()));
    assert_eq!(rig.start(&key, &late, &run).await, 1, "at once");
    assert!(rig.finish(&key, &late, &run).await);
    assert_eq!(rig.start(&key, &other, &stranger()).await, 1);
}

async fn what_is_not_charged_is_no_attempt_past_the_deadline_either(rig: &Rig) {
    let delay = SHORT;
    let (busy, reason) = ("busy", "drained");
    for verdict in [
        Settlement::Postpone { delay, reason: busy },
        Settlement::ReturnToQueue { delay, reason },
        Settlement::Retry { delay, reason: "status 503" },
    ] {
        let (key, run) = (key(), stranger());
        let id = stored(rig, until(&key, SHORT)).await;
        assert_eq!(rig.start(&key, &id, &run).await, 1);
        rig.pass(SHORT).await;
        let charged = matches!(verdict, Settlement::Retry { .. });
        assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
        let job = rig.job(&id).await.expect("it is kept");
        assert_eq!((job.state, job.attempts), (JobState::Expired, u32::from(charged)));
    }
}
