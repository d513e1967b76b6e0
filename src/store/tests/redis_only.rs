//! Behavior of Redis alone.

use super::{
    on_redis,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, done_settlement, enqueue_command,
        fixed_window_item, grouped_charge, new_token, next_claim, settle_command, test_key,
        try_acquire_command,
    },
};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, ClaimOutcome, JobState, SettleCommand, SettleOutcome, Settlement,
    },
};

on_redis!(
    counter_without_ttl_gets_new_window,
    job_without_record_does_not_block_its_queue,
    job_without_request_becomes_dead,
    dead_job_without_request_is_not_redriven,
    settle_skips_next_jobs_without_keys,
    settle_restores_deleted_due_index,
    expired_queue_entries_leave_no_fields_beside_jobs,
    queue_entry_fields_go_with_last_job,
    ended_locks_and_jobs_leave_no_keys,
);

async fn counter_without_ttl_gets_new_window(rig: &StoreHarness) {
    let subject = test_key();
    let charge = || grouped_charge(vec![fixed_window_item("p", &subject, (1, SHORT_TIME), 1)]);
    assert_eq!(rig.charge(charge()).await.admitted, 1);
    let counter = format!("{{{}}}:c:p:{subject}", subject.shard());
    assert_eq!(rig.server().key_command::<i64>("PERSIST", &counter, &[]).await, 1);
    let refused = rig.charge(charge()).await;
    assert_eq!((refused.admitted, refused.snapshots[0].retry_after), (0, SHORT_TIME));
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.charge(charge()).await.admitted, 1, "it would refuse for ever");
}

async fn job_without_record_does_not_block_its_queue(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let (lost, next) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    let job_record = format!("{{{}}}:j:{lost}", key.shard());
    assert_eq!(rig.server().key_command::<i64>("DEL", &job_record, &[]).await, 1);
    let outcome = rig.claim(claim_command(&key, &lost, &run)).await;
    assert_eq!(outcome, ClaimOutcome::Ended(lost.clone()));
    assert_eq!(rig.job_view(&lost).await.unwrap().reason.as_deref(), Some("lost"));
    assert_eq!(rig.start_run(&key, &next, &run).await, 1);
    rig.finish_run(&key, &next, &run).await;
    let shard_fields = format!("{{{}}}:f", key.shard());
    let counted: Vec<String> =
        rig.server().key_command("HMGET", &shard_fields, &["jobs", "bytes"]).await;
    assert_eq!(counted, ["0", "0"], "the lost job still counts");
}

async fn job_without_request_becomes_dead(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let lost = rig.enqueue_job(&key).await;
    let request = format!("{{{}}}:b:{lost}", key.shard());
    assert_eq!(rig.server().key_command::<i64>("DEL", &request, &[]).await, 1);
    let outcome = rig.claim(claim_command(&key, &lost, &run)).await;
    assert_eq!(outcome, ClaimOutcome::Ended(lost.clone()));
    assert_eq!(rig.job_state(&lost).await, Some(JobState::Dead));
    rig.acquire_exclusive(&key, &run).await;
}

async fn dead_job_without_request_is_not_redriven(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    let settlement = Settlement::Dead { reason: "auth", retention: LONG_TIME };
    assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
    let request = format!("{{{}}}:b:{id}", key.shard());
    assert_eq!(rig.server().key_command::<i64>("DEL", &request, &[]).await, 1);
    assert_eq!(rig.redrive(&id).await, Some(JobState::Dead));
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert!(rig.purge(&id).await);
}

async fn settle_skips_next_jobs_without_keys(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let first = rig.enqueue_job(&key).await;
    rig.start_run(&key, &first, &run).await;
    let mut damaged = Vec::new();
    for kind in ["j", "b"] {
        let lost = rig.enqueue_job(&key).await;
        let name = format!("{{{}}}:{kind}:{lost}", key.shard());
        assert_eq!(rig.server().key_command::<i64>("DEL", &name, &[]).await, 1);
        damaged.push(lost);
    }
    let last = rig.enqueue_job(&key).await;
    let next = Some(next_claim(&new_token()));
    let call =
        SettleCommand { next_claim: next, ..settle_command(&key, &first, &run, done_settlement()) };
    // A settlement must not bury the damaged jobs silently; a claim reports them, and their lock is
    // due now.
    assert_eq!(rig.settle_and_claim(call).await, SettleOutcome::Settled(None));
    for lost in damaged {
        let ClaimOutcome::Ended(dead) = rig.claim(claim_command(&key, &lost, &new_token())).await
        else {
            panic!("{lost:?} has nothing to run");
        };
        assert_eq!(dead, lost);
    }
    rig.start_run(&key, &last, &new_token()).await;
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.pending, stats.dead), (1, 2), "{stats:?}");
}

async fn settle_restores_deleted_due_index(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let (id, next) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.start_run(&key, &id, &run).await;
    let due = format!("{{{}}}:due", key.shard());
    assert_eq!(rig.server().key_command::<i64>("DEL", &due, &[]).await, 1);
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    rig.start_run(&key, &next, &new_token()).await;
}

/// Joins the queue for `SHORT_TIME`, without further polls.
async fn join_queue_and_leave(rig: &StoreHarness, key: &Key) {
    rig.acquire(AcquireCommand {
        max_wait: Some(SHORT_TIME),
        ..try_acquire_command(key, &new_token())
    })
    .await;
}

async fn expired_queue_entries_leave_no_fields_beside_jobs(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.acquire_exclusive(&key, &new_token()).await;
    let id = rig.enqueue_job(&key).await;
    let queue_fields = format!("{{{}}}:l:{key}", key.shard());
    for _ in 0..3 {
        for _ in 0..5 {
            join_queue_and_leave(rig, &key).await;
        }
        rig.advance_past(SHORT_TIME).await;
    }
    let fields: i64 = rig.server().key_command("HLEN", &queue_fields, &[]).await;
    assert_eq!(fields, 5 + 1, "those of the latest line, and the bytes");
    // The other fields stay: bytes and backoff.
    let bytes: String = rig.server().key_command("HGET", &queue_fields, &["bytes"]).await;
    assert_eq!(bytes, "7");
    rig.advance_past(LONG_TIME).await;
    rig.start_run(&key, &id, &run).await;
    let settlement = Settlement::Retry { delay: LONG_TIME / 2, reason: "status 503" };
    assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
    rig.acquire_exclusive(&key, &run).await;
    rig.join_queue(&key, &new_token()).await;
    let fields: i64 = rig.server().key_command("HLEN", &queue_fields, &[]).await;
    assert_eq!(fields, 1 + 2, "one queue entry, bytes and backoff");
    let later = rig.claim(claim_command(&key, &id, &new_token())).await;
    assert!(matches!(later, ClaimOutcome::NotDue(_)), "{later:?}");
}

async fn queue_entry_fields_go_with_last_job(rig: &StoreHarness) {
    let key = test_key();
    rig.acquire_exclusive(&key, &new_token()).await;
    let id = rig.enqueue_job(&key).await;
    join_queue_and_leave(rig, &key).await;
    rig.cancel(&id).await;
    rig.advance_past(SHORT_TIME).await;
    let id = rig.enqueue_job(&key).await;
    join_queue_and_leave(rig, &key).await;
    rig.advance_past(SHORT_TIME).await;
    rig.cancel(&id).await;
    let leftover = rig.server().key_names().await;
    let has_queue_fields = leftover.iter().any(|name| name.contains("}:l:"));
    assert!(!has_queue_fields, "{leftover:?}");
}

/// Returns true for keys that never expire by design.
pub(super) fn is_permanent_key(name: &str) -> bool {
    ["{0}:meta", "{0}:workers"].contains(&name)
        || name.ends_with("}:f")
        || name.ends_with("}:watch")
}

async fn ended_locks_and_jobs_leave_no_keys(rig: &StoreHarness) {
    let (key, a, b, run) = (test_key(), new_token(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &a) }).await;
    rig.join_queue(&key, &b).await;
    let mut call = enqueue_command(&key);
    call.idempotency_record = Some(("idem".into(), "print".into(), LONG_TIME));
    let finished = call.id.clone();
    rig.enqueue(call).await;
    let cancelled = rig.enqueue_job(&key).await;
    rig.cancel(&cancelled).await;
    rig.advance_past(SHORT_TIME).await;
    rig.release(&key, &b).await;
    rig.start_run(&key, &finished, &run).await;
    rig.finish_run(&key, &finished, &run).await;
    // All other keys expire by themselves. An index may outlive its last entry by an eighth.
    rig.advance_past(LONG_TIME * 2).await;
    let leftover = rig.server().key_names().await;
    let leftover: Vec<_> = leftover.iter().filter(|name| !is_permanent_key(name)).collect();
    assert!(leftover.is_empty(), "{leftover:?}");
}
