//! Jobs that have ended: their history, lists of them, putting them back, forgetting and counting them.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, deferred, done, key, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, EndedFilter, EnqueueCommand, EnqueueOutcome, JobId, JobState, OFFER_TIMEOUT,
        Settlement, ShardStats,
    },
};

on_every_store!(
    the_history_tells_of_each_run,
    of_many_runs_the_last_twenty_are_told,
    lists_go_on_from_page_to_page,
    a_list_has_facts_and_no_bodies,
    what_has_ended_is_listed_for_its_time,
    a_dead_job_is_put_back_at_the_tail,
    only_dead_jobs_are_put_back,
    an_ended_job_is_forgotten,
    what_is_purged_is_known_for_its_time,
    a_record_is_there_as_long_as_its_job,
    what_is_gone_is_counted,
);

/// A job that has died.
async fn died(rig: &Rig, key: &Key, retention: Duration) -> JobId {
    let (id, run) = (rig.put_off(key).await, stranger());
    rig.start(key, &id, &run).await;
    let verdict = Settlement::Dead { reason: "auth", retention };
    assert!(rig.settle(settled(key, &id, &run, verdict)).await);
    id
}

async fn ids(rig: &Rig, which: EndedFilter) -> Vec<JobId> {
    let listed = rig.list(key().shard(), which, 0, 100).await;
    assert_eq!(listed.next_mark, None);
    listed.jobs.into_iter().map(|(id, _)| id).collect()
}

async fn the_history_tells_of_each_run(rig: &Rig) {
    let key = key();
    let call = EnqueueCommand { owner: "tenant 1".into(), ..again(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    let past = rig.past(&id).await.unwrap();
    assert_eq!((past.lock, past.bytes, past.started_us), (Some(key.clone()), 7, 0));
    assert!(past.accepted_us > 1_600_000_000_000_000 && past.recent_runs.is_empty());
    let verdicts = [
        Settlement::Retry { delay: SHORT, reason: "status 503" },
        Settlement::Postpone { delay: SHORT, reason: "busy" },
        done(),
    ];
    for verdict in verdicts {
        let run = stranger();
        rig.start(&key, &id, &run).await;
        assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
        rig.pass(SHORT).await;
    }
    let past = rig.past(&id).await.unwrap();
    assert_eq!(
        (past.busy_count, past.crash_count, past.due_in, &past.superseded_by),
        (1, 0, None, &None)
    );
    let mut last = past.accepted_us;
    for (run, told) in
        past.recent_runs.iter().zip([("1", "status 503"), ("2", "busy"), ("2", "done")])
    {
        let words = Vec::from_iter(run.splitn(4, ' '));
        assert_eq!((words[0], words[3]), told);
        for time in &words[1..3] {
            let time = time.parse().unwrap();
            assert!(last <= time, "{past:?}");
            last = time;
        }
    }
    assert_eq!((past.recent_runs.len(), past.ended_us), (3, last));
    assert!(past.started_us <= last && past.started_us > past.accepted_us);
}

async fn of_many_runs_the_last_twenty_are_told(rig: &Rig) {
    let (key, id) = (key(), rig.put_off(&key()).await);
    for n in 0..25 {
        let run = stranger();
        rig.start(&key, &id, &run).await;
        let reason = if n < 5 { "busy" } else { "drained" };
        let back = Settlement::Postpone { delay: SHORT, reason };
        assert!(rig.settle(settled(&key, &id, &run, back)).await);
        rig.pass(SHORT).await;
    }
    let past = rig.past(&id).await.unwrap();
    assert_eq!((past.recent_runs.len(), past.busy_count), (20, 5));
    assert!(past.recent_runs.iter().all(|run| run.ends_with(" drained")), "{past:?}");
}

async fn lists_go_on_from_page_to_page(rig: &Rig) {
    let key = key();
    let mut dead = Vec::new();
    for _ in 0..5 {
        dead.push(died(rig, &key, LONG).await);
        rig.pass(Duration::from_millis(5)).await;
    }
    let (mut from, mut seen) = (0, Vec::new());
    loop {
        let page = rig.list(key.shard(), EndedFilter::Dead, from, 2).await;
        // What goes meanwhile, and what comes, moves nobody else.
        if seen.is_empty() {
            assert!(rig.purge(&dead[1]).await);
            dead.push(died(rig, &key, LONG).await);
        }
        seen.extend(page.jobs.into_iter().map(|(id, _)| id));
        match page.next_mark {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(seen, dead);
    assert_eq!(ids(rig, EndedFilter::Done).await, []);
}

async fn a_list_has_facts_and_no_bodies(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let call = EnqueueCommand { owner: "tenant 1".into(), ..deferred(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.start(&key, &id, &run).await;
    rig.finish(&key, &id, &run).await;
    let mut job = rig.backend().job_view(id.clone()).await.unwrap().unwrap();
    assert!(job.response.take().is_some());
    let listed = rig.list(key.shard(), EndedFilter::Done, 0, 10).await;
    assert_eq!(listed.jobs, [(id, job)]);
}

async fn what_has_ended_is_listed_for_its_time(rig: &Rig) {
    let key = key();
    let long = died(rig, &key, LONG).await;
    let short = died(rig, &key, SHORT).await;
    assert_eq!(ids(rig, EndedFilter::Dead).await, [short, long.clone()]);
    rig.pass(SHORT).await;
    assert_eq!(ids(rig, EndedFilter::Dead).await, [long]);
    rig.pass(LONG).await;
    assert_eq!(ids(rig, EndedFilter::Dead).await, []);
}

async fn a_dead_job_is_put_back_at_the_tail(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let id = died(rig, &key, LONG).await;
    let other = rig.put_off(&key).await;
    for _ in 0..2 {
        assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    }
    let job = rig.backend().job_view(id.clone()).await.unwrap().unwrap();
    assert_eq!((job.state, job.position, job.attempts), (JobState::Queued, Some(2), 0));
    assert_eq!((job.reason, job.history.ended_us, job.history.recent_runs.len()), (None, 0, 1));
    assert_eq!(ids(rig, EndedFilter::Dead).await, []);
    // It has no end any more.
    rig.pass(LONG * 2).await;
    rig.worker().await;
    rig.start(&key, &other, &run).await;
    rig.finish(&key, &other, &run).await;
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT, "it is offered the lock");
    let run = stranger();
    assert_eq!(rig.start(&key, &id, &run).await, 1);
    assert!(rig.finish(&key, &id, &run).await);
    assert_eq!(rig.past(&id).await.unwrap().recent_runs.len(), 2);
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.pending, tally.bytes, tally.dead, tally.trimmed_dead), (0, 0, 0, 0));
}

async fn only_dead_jobs_are_put_back(rig: &Rig) {
    let (key, run) = (key(), stranger());
    assert_eq!(rig.redrive(&JobId::new(&key)).await, None);
    let id = rig.put_off(&key).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    assert_eq!(rig.job(&id).await.unwrap().position, Some(1));
    rig.start(&key, &id, &run).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Running));
    rig.finish(&key, &id, &run).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Done));
    // One that crashed may be; so may one whose line has others, on a lock that is held.
    let id = rig.put_off(&key).await;
    rig.claim(ClaimCommand { lease: SHORT, ..visit(&key, &id, &run) }).await;
    rig.pass(SHORT).await;
    rig.claim(visit(&key, &id, &stranger())).await;
    assert_eq!(rig.past(&id).await.unwrap().crash_count, 1);
    let holder = stranger();
    rig.hold(&key, &holder).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    let due = rig.due(key.shard(), 10).await;
    assert!(due.next.is_some_and(|next| next > LONG / 2), "when the lock's lease ends: {due:?}");
    rig.release(&key, &holder).await;
    assert_eq!(rig.start(&key, &id, &stranger()).await, 1);
}

async fn an_ended_job_is_forgotten(rig: &Rig) {
    let (key, run) = (key(), stranger());
    assert!(!rig.purge(&JobId::new(&key)).await);
    let call = deferred(&key);
    let id = call.id.clone();
    rig.enqueue(call.clone()).await;
    assert!(!rig.purge(&id).await, "it waits");
    rig.start(&key, &id, &run).await;
    assert!(!rig.purge(&id).await, "it runs");
    rig.finish(&key, &id, &run).await;
    let dead = died(rig, &key, LONG).await;
    for id in [&id, &dead] {
        assert!(rig.purge(id).await);
        assert!(!rig.purge(id).await);
        assert!(rig.is_tombstone(id).await);
        assert_eq!(rig.redrive(id).await, rig.job(id).await.map(|job| job.state));
        assert!(rig.is_tombstone(id).await);
    }
    assert_eq!(ids(rig, EndedFilter::Dead).await, []);
    assert_eq!(ids(rig, EndedFilter::Done).await, []);
    let none = ShardStats::default();
    assert_eq!(rig.tally(key.shard()).await, none, "what was purged is not trimmed");
    assert_eq!(rig.enqueue(call).await, EnqueueOutcome::Stored { position: 1 });
}

async fn what_is_purged_is_known_for_its_time(rig: &Rig) {
    let key = key();
    let keyed = || EnqueueCommand {
        idempotency_record: Some(("idem".into(), "print".into(), LONG)),
        ..deferred(&key)
    };
    let (old, run) = (keyed(), stranger());
    rig.enqueue(old.clone()).await;
    rig.start(&key, &old.id, &run).await;
    rig.finish(&key, &old.id, &run).await;
    assert_eq!(rig.enqueue(keyed()).await, EnqueueOutcome::Duplicate(old.id.clone()));
    assert!(rig.purge(&old.id).await);
    assert_eq!(rig.enqueue(keyed()).await, EnqueueOutcome::Duplicate(old.id.clone()));
    assert!(!rig.purge(&old.id).await);
    rig.pass(LONG).await;
    assert_eq!(rig.job(&old.id).await, None);
    assert_eq!(rig.enqueue(keyed()).await, EnqueueOutcome::Stored { position: 1 });
}

/// However short its own life is: a retry would run again what waits still, or has run.
async fn a_record_is_there_as_long_as_its_job(rig: &Rig) {
    for end in ["done", "dead", "cancelled", "redriven"] {
        let (key, run) = (key(), stranger());
        let keyed = || EnqueueCommand {
            idempotency_record: Some((end.into(), "print".into(), SHORT)),
            ..deferred(&key)
        };
        let first = keyed();
        let id = first.id.clone();
        rig.enqueue(first).await;
        let is_known = async |when: &str| {
            rig.pass(SHORT * 2).await;
            assert_eq!(
                rig.enqueue(keyed()).await,
                EnqueueOutcome::Duplicate(id.clone()),
                "{end}: {when}"
            );
        };
        is_known("it waits").await;
        if end == "cancelled" {
            rig.cancel(&id).await;
        } else {
            let dead = Settlement::Dead { reason: "auth", retention: LONG };
            let verdict = if end == "done" { done() } else { dead };
            rig.start(&key, &id, &run).await;
            assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
        }
        is_known("it is kept").await;
        if end == "redriven" {
            assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
            rig.pass(LONG).await;
            is_known("it waits again").await;
            rig.cancel(&id).await;
        }
        rig.pass(LONG).await;
        assert_eq!(rig.job(&id).await, None, "{end}");
        let another = keyed();
        let id = another.id.clone();
        assert_eq!(rig.enqueue(another).await, EnqueueOutcome::Stored { position: 1 }, "{end}");
        rig.cancel(&id).await;
    }
}

async fn what_is_gone_is_counted(rig: &Rig) {
    let key = key();
    let shard = key.shard();
    for retention in [SHORT, SHORT, LONG] {
        died(rig, &key, retention).await;
    }
    let run = stranger();
    let id = rig.put_off(&key).await;
    rig.start(&key, &id, &run).await;
    let verdict = Settlement::Done { response: "made".into(), status: 200, retention: SHORT };
    assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
    let (one, two) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.cancel(&one).await;
    let tally = ShardStats {
        pending: 1,
        bytes: 7,
        done: 1,
        dead: 3,
        cancelled: 1,
        ..ShardStats::default()
    };
    assert_eq!(rig.tally(shard).await, tally);
    rig.pass(SHORT).await;
    let tally = ShardStats { done: 0, dead: 1, trimmed_done: 1, trimmed_dead: 2, ..tally };
    assert_eq!(rig.tally(shard).await, tally);
    rig.cancel(&two).await;
    rig.pass(LONG * 2).await;
    died(rig, &key, LONG).await;
    let tally =
        ShardStats { pending: 0, bytes: 0, dead: 1, trimmed_dead: 3, cancelled: 2, ..tally };
    assert_eq!(rig.tally(shard).await, tally);
}
