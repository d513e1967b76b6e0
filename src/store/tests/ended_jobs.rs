//! Ended jobs: history, listing, redrive, purge and counts.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, done_settlement, enqueue_command,
        new_token, retryable_enqueue_command, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, EndedJobFilter, EnqueueCommand, EnqueueOutcome, JobId, JobState,
        OFFER_TIMEOUT, Settlement, ShardStats,
    },
};

on_every_store!(
    history_lists_each_run,
    history_keeps_last_twenty_runs,
    dead_letter_pages_are_stable_under_changes,
    listed_jobs_have_no_response_body,
    ended_job_is_listed_until_retention_ends,
    redriven_job_joins_queue_tail,
    redrive_requeues_only_dead_jobs,
    purged_job_leaves_only_tombstone,
    record_of_purged_job_lives_until_retention_ends,
    idempotency_record_lives_as_long_as_its_job,
    trimmed_jobs_are_counted_in_shard_stats,
);

/// Runs a job to a dead letter.
async fn run_to_dead_letter(rig: &StoreHarness, key: &Key, retention: Duration) -> JobId {
    let (id, run) = (rig.enqueue_job(key).await, new_token());
    rig.start_run(key, &id, &run).await;
    let settlement = Settlement::Dead { reason: "auth", retention };
    assert!(rig.settle(settle_command(key, &id, &run, settlement)).await);
    id
}

async fn listed_job_ids(rig: &StoreHarness, filter: EndedJobFilter) -> Vec<JobId> {
    let listed = rig.list_ended(test_key().shard(), filter, 0, 100).await;
    assert_eq!(listed.next_mark, None);
    listed.jobs.into_iter().map(|(id, _)| id).collect()
}

async fn history_lists_each_run(rig: &StoreHarness) {
    let key = test_key();
    let call = EnqueueCommand { owner: "tenant 1".into(), ..retryable_enqueue_command(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    let history = rig.job_history(&id).await.unwrap();
    assert_eq!((history.lock, history.bytes, history.started_us), (Some(key.clone()), 7, 0));
    assert!(history.accepted_us > 1_600_000_000_000_000 && history.recent_runs.is_empty());
    let settlements = [
        Settlement::Retry { delay: SHORT_TIME, reason: "status 503" },
        Settlement::Postpone { delay: SHORT_TIME, reason: "busy" },
        done_settlement(),
    ];
    for settlement in settlements {
        let run = new_token();
        rig.start_run(&key, &id, &run).await;
        assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
        rig.advance_past(SHORT_TIME).await;
    }
    let history = rig.job_history(&id).await.unwrap();
    assert_eq!(
        (history.busy_count, history.crash_count, history.due_in, &history.superseded_by),
        (1, 0, None, &None)
    );
    let mut last = history.accepted_us;
    for (run, expected) in
        history.recent_runs.iter().zip([("1", "status 503"), ("2", "busy"), ("2", "done")])
    {
        let parts = Vec::from_iter(run.splitn(4, ' '));
        assert_eq!((parts[0], parts[3]), expected);
        for time in &parts[1..3] {
            let time = time.parse().unwrap();
            assert!(last <= time, "{history:?}");
            last = time;
        }
    }
    assert_eq!((history.recent_runs.len(), history.ended_us), (3, last));
    assert!(history.started_us <= last && history.started_us > history.accepted_us);
}

async fn history_keeps_last_twenty_runs(rig: &StoreHarness) {
    let (key, id) = (test_key(), rig.enqueue_job(&test_key()).await);
    for n in 0..25 {
        let run = new_token();
        rig.start_run(&key, &id, &run).await;
        let reason = if n < 5 { "busy" } else { "drained" };
        let postpone = Settlement::Postpone { delay: SHORT_TIME, reason };
        assert!(rig.settle(settle_command(&key, &id, &run, postpone)).await);
        rig.advance_past(SHORT_TIME).await;
    }
    let history = rig.job_history(&id).await.unwrap();
    assert_eq!((history.recent_runs.len(), history.busy_count), (20, 5));
    assert!(history.recent_runs.iter().all(|run| run.ends_with(" drained")), "{history:?}");
}

async fn dead_letter_pages_are_stable_under_changes(rig: &StoreHarness) {
    let key = test_key();
    let mut dead = Vec::new();
    for _ in 0..5 {
        dead.push(run_to_dead_letter(rig, &key, LONG_TIME).await);
        rig.advance_past(Duration::from_millis(5)).await;
    }
    let (mut mark, mut listed) = (0, Vec::new());
    loop {
        let page = rig.list_ended(key.shard(), EndedJobFilter::Dead, mark, 2).await;
        // Jobs that leave or join the listing between two pages do not shift the others.
        if listed.is_empty() {
            assert!(rig.purge(&dead[1]).await);
            dead.push(run_to_dead_letter(rig, &key, LONG_TIME).await);
        }
        listed.extend(page.jobs.into_iter().map(|(id, _)| id));
        match page.next_mark {
            Some(next_mark) => mark = next_mark,
            None => break,
        }
    }
    assert_eq!(listed, dead);
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Done).await, []);
}

async fn listed_jobs_have_no_response_body(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let call = EnqueueCommand { owner: "tenant 1".into(), ..enqueue_command(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.start_run(&key, &id, &run).await;
    rig.finish_run(&key, &id, &run).await;
    let mut job = rig.backend().job_view(id.clone()).await.unwrap().unwrap();
    assert!(job.response.take().is_some());
    let listed = rig.list_ended(key.shard(), EndedJobFilter::Done, 0, 10).await;
    assert_eq!(listed.jobs, [(id, job)]);
}

async fn ended_job_is_listed_until_retention_ends(rig: &StoreHarness) {
    let key = test_key();
    let long = run_to_dead_letter(rig, &key, LONG_TIME).await;
    let short = run_to_dead_letter(rig, &key, SHORT_TIME).await;
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Dead).await, [short, long.clone()]);
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Dead).await, [long]);
    rig.advance_past(LONG_TIME).await;
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Dead).await, []);
}

async fn redriven_job_joins_queue_tail(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let id = run_to_dead_letter(rig, &key, LONG_TIME).await;
    let other = rig.enqueue_job(&key).await;
    for _ in 0..2 {
        assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    }
    let job = rig.backend().job_view(id.clone()).await.unwrap().unwrap();
    assert_eq!((job.state, job.position, job.attempts), (JobState::Queued, Some(2), 0));
    assert_eq!((job.reason, job.history.ended_us, job.history.recent_runs.len()), (None, 0, 1));
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Dead).await, []);
    // A redriven job has no expiry.
    rig.advance_past(LONG_TIME * 2).await;
    rig.register_worker().await;
    rig.start_run(&key, &other, &run).await;
    rig.finish_run(&key, &other, &run).await;
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT, "it is offered the lock");
    let run = new_token();
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(rig.job_history(&id).await.unwrap().recent_runs.len(), 2);
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.pending, stats.bytes, stats.dead, stats.trimmed_dead), (0, 0, 0, 0));
}

async fn redrive_requeues_only_dead_jobs(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    assert_eq!(rig.redrive(&JobId::new(&key)).await, None);
    let id = rig.enqueue_job(&key).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    assert_eq!(rig.job_view(&id).await.unwrap().position, Some(1));
    rig.start_run(&key, &id, &run).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Running));
    rig.finish_run(&key, &id, &run).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Done));
    // A crashed job can be redriven, even if its lock is held and its queue has other jobs.
    let id = rig.enqueue_job(&key).await;
    rig.claim(ClaimCommand { lease: SHORT_TIME, ..claim_command(&key, &id, &run) }).await;
    rig.advance_past(SHORT_TIME).await;
    rig.claim(claim_command(&key, &id, &new_token())).await;
    assert_eq!(rig.job_history(&id).await.unwrap().crash_count, 1);
    let holder = new_token();
    rig.acquire_exclusive(&key, &holder).await;
    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    let due = rig.poll_due(key.shard(), 10).await;
    assert!(
        due.next_due_in.is_some_and(|next| next > LONG_TIME / 2),
        "when the lock's lease ends: {due:?}"
    );
    rig.release(&key, &holder).await;
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 1);
}

async fn purged_job_leaves_only_tombstone(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    assert!(!rig.purge(&JobId::new(&key)).await);
    let call = enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call.clone()).await;
    assert!(!rig.purge(&id).await, "it waits");
    rig.start_run(&key, &id, &run).await;
    assert!(!rig.purge(&id).await, "it runs");
    rig.finish_run(&key, &id, &run).await;
    let dead = run_to_dead_letter(rig, &key, LONG_TIME).await;
    for id in [&id, &dead] {
        assert!(rig.purge(id).await);
        assert!(!rig.purge(id).await);
        assert!(rig.is_tombstone(id).await);
        assert_eq!(rig.redrive(id).await, rig.job_view(id).await.map(|job| job.state));
        assert!(rig.is_tombstone(id).await);
    }
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Dead).await, []);
    assert_eq!(listed_job_ids(rig, EndedJobFilter::Done).await, []);
    let none = ShardStats::default();
    assert_eq!(rig.shard_stats(key.shard()).await, none, "a purged job is not counted");
    assert_eq!(rig.enqueue(call).await, EnqueueOutcome::Stored { position: 1 });
}

async fn record_of_purged_job_lives_until_retention_ends(rig: &StoreHarness) {
    let key = test_key();
    let command = || EnqueueCommand {
        idempotency_record: Some(("idem".into(), "print".into(), LONG_TIME)),
        ..enqueue_command(&key)
    };
    let (purged, run) = (command(), new_token());
    rig.enqueue(purged.clone()).await;
    rig.start_run(&key, &purged.id, &run).await;
    rig.finish_run(&key, &purged.id, &run).await;
    assert_eq!(rig.enqueue(command()).await, EnqueueOutcome::Duplicate(purged.id.clone()));
    assert!(rig.purge(&purged.id).await);
    assert_eq!(rig.enqueue(command()).await, EnqueueOutcome::Duplicate(purged.id.clone()));
    assert!(!rig.purge(&purged.id).await);
    rig.advance_past(LONG_TIME).await;
    assert_eq!(rig.job_view(&purged.id).await, None);
    assert_eq!(rig.enqueue(command()).await, EnqueueOutcome::Stored { position: 1 });
}

/// The record outlives its own TTL: otherwise a retry would run the job a second time.
async fn idempotency_record_lives_as_long_as_its_job(rig: &StoreHarness) {
    for ending in ["done", "dead", "cancelled", "redriven"] {
        let (key, run) = (test_key(), new_token());
        let command = || EnqueueCommand {
            idempotency_record: Some((ending.into(), "print".into(), SHORT_TIME)),
            ..enqueue_command(&key)
        };
        let first = command();
        let id = first.id.clone();
        rig.enqueue(first).await;
        let assert_known = async |when: &str| {
            rig.advance_past(SHORT_TIME * 2).await;
            assert_eq!(
                rig.enqueue(command()).await,
                EnqueueOutcome::Duplicate(id.clone()),
                "{ending}: {when}"
            );
        };
        assert_known("it waits").await;
        if ending == "cancelled" {
            rig.cancel(&id).await;
        } else {
            let dead = Settlement::Dead { reason: "auth", retention: LONG_TIME };
            let settlement = if ending == "done" { done_settlement() } else { dead };
            rig.start_run(&key, &id, &run).await;
            assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
        }
        assert_known("it is stored").await;
        if ending == "redriven" {
            assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
            rig.advance_past(LONG_TIME).await;
            assert_known("it waits again").await;
            rig.cancel(&id).await;
        }
        rig.advance_past(LONG_TIME).await;
        assert_eq!(rig.job_view(&id).await, None, "{ending}");
        let next = command();
        let id = next.id.clone();
        assert_eq!(rig.enqueue(next).await, EnqueueOutcome::Stored { position: 1 }, "{ending}");
        rig.cancel(&id).await;
    }
}

async fn trimmed_jobs_are_counted_in_shard_stats(rig: &StoreHarness) {
    let key = test_key();
    let shard = key.shard();
    for retention in [SHORT_TIME, SHORT_TIME, LONG_TIME] {
        run_to_dead_letter(rig, &key, retention).await;
    }
    let run = new_token();
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    let settlement =
        Settlement::Done { response: "made".into(), status: 200, retention: SHORT_TIME };
    assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
    let (one, two) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.cancel(&one).await;
    let stats = ShardStats {
        pending: 1,
        bytes: 7,
        done: 1,
        dead: 3,
        cancelled: 1,
        ..ShardStats::default()
    };
    assert_eq!(rig.shard_stats(shard).await, stats);
    rig.advance_past(SHORT_TIME).await;
    let stats = ShardStats { done: 0, dead: 1, trimmed_done: 1, trimmed_dead: 2, ..stats };
    assert_eq!(rig.shard_stats(shard).await, stats);
    rig.cancel(&two).await;
    rig.advance_past(LONG_TIME * 2).await;
    run_to_dead_letter(rig, &key, LONG_TIME).await;
    let stats =
        ShardStats { pending: 0, bytes: 0, dead: 1, trimmed_dead: 3, cancelled: 2, ..stats };
    assert_eq!(rig.shard_stats(shard).await, stats);
}
