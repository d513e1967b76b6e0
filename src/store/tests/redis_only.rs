//! What can only be seen on a Redis server.

use super::{
    on_redis,
    rig::{
        LONG, Rig, SHORT, ask, deferred, done, fixed, key, next_run, settled, stranger, together,
        visit,
    },
};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, ClaimOutcome, JobState, SettleCommand, SettleOutcome, Settlement,
    },
};

on_redis!(
    a_counter_that_lost_its_ttl_gets_it_back,
    a_job_whose_facts_vanished_does_not_block_its_line,
    a_job_whose_request_vanished_is_dead,
    a_job_without_its_request_stays_dead,
    a_next_job_whose_keys_vanished_is_passed_over,
    a_line_whose_due_entry_vanished_is_found_by_its_next_step,
    dead_places_leave_no_fields_in_a_line_that_always_has_jobs,
    fields_of_places_go_with_the_last_job,
    nothing_is_left_when_everything_has_ended,
);

async fn a_counter_that_lost_its_ttl_gets_it_back(rig: &Rig) {
    let subject = key();
    let charge = || together(vec![fixed("p", &subject, (1, SHORT), 1)]);
    assert_eq!(rig.charge(charge()).await.admitted, 1);
    let counter = format!("{{{}}}:c:p:{subject}", subject.shard());
    assert_eq!(rig.server().raw::<i64>("PERSIST", &counter, &[]).await, 1);
    let refused = rig.charge(charge()).await;
    assert_eq!((refused.admitted, refused.snapshots[0].retry_after), (0, SHORT));
    rig.pass(SHORT).await;
    assert_eq!(rig.charge(charge()).await.admitted, 1, "it would refuse for ever");
}

async fn a_job_whose_facts_vanished_does_not_block_its_line(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let (lost, next) = (rig.put_off(&key).await, rig.put_off(&key).await);
    let facts = format!("{{{}}}:j:{lost}", key.shard());
    assert_eq!(rig.server().raw::<i64>("DEL", &facts, &[]).await, 1);
    let visited = rig.claim(visit(&key, &lost, &run)).await;
    assert_eq!(visited, ClaimOutcome::Ended(lost.clone()));
    assert_eq!(rig.job(&lost).await.unwrap().reason.as_deref(), Some("lost"));
    assert_eq!(rig.start(&key, &next, &run).await, 1);
    rig.finish(&key, &next, &run).await;
    let shard = format!("{{{}}}:f", key.shard());
    let counted: Vec<String> = rig.server().raw("HMGET", &shard, &["jobs", "bytes"]).await;
    assert_eq!(counted, ["0", "0"], "the lost job still counts");
}

async fn a_job_whose_request_vanished_is_dead(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let lost = rig.put_off(&key).await;
    let request = format!("{{{}}}:b:{lost}", key.shard());
    assert_eq!(rig.server().raw::<i64>("DEL", &request, &[]).await, 1);
    let visited = rig.claim(visit(&key, &lost, &run)).await;
    assert_eq!(visited, ClaimOutcome::Ended(lost.clone()));
    assert_eq!(rig.state(&lost).await, Some(JobState::Dead));
    rig.hold(&key, &run).await;
}

async fn a_job_without_its_request_stays_dead(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = rig.put_off(&key).await;
    rig.start(&key, &id, &run).await;
    let verdict = Settlement::Dead { reason: "auth", retention: LONG };
    assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
    let request = format!("{{{}}}:b:{id}", key.shard());
    assert_eq!(rig.server().raw::<i64>("DEL", &request, &[]).await, 1);
    assert_eq!(rig.redrive(&id).await, Some(JobState::Dead));
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert!(rig.purge(&id).await);
}

async fn a_next_job_whose_keys_vanished_is_passed_over(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let first = rig.put_off(&key).await;
    rig.start(&key, &first, &run).await;
    let mut vanished = Vec::new();
    for kind in ["j", "b"] {
        let lost = rig.put_off(&key).await;
        let name = format!("{{{}}}:{kind}:{lost}", key.shard());
        assert_eq!(rig.server().raw::<i64>("DEL", &name, &[]).await, 1);
        vanished.push(lost);
    }
    let last = rig.put_off(&key).await;
    let next = Some(next_run(&stranger()));
    let call = SettleCommand { next_claim: next, ..settled(&key, &first, &run, done()) };
    // Who dies is told of: a visit does that, which is due now.
    assert_eq!(rig.settle_and_run(call).await, SettleOutcome::Settled(None));
    for lost in vanished {
        let ClaimOutcome::Ended(dead) = rig.claim(visit(&key, &lost, &stranger())).await else {
            panic!("{lost:?} has nothing to run");
        };
        assert_eq!(dead, lost);
    }
    rig.start(&key, &last, &stranger()).await;
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.pending, tally.dead), (1, 2), "{tally:?}");
}

async fn a_line_whose_due_entry_vanished_is_found_by_its_next_step(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let (id, next) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.start(&key, &id, &run).await;
    let due = format!("{{{}}}:due", key.shard());
    assert_eq!(rig.server().raw::<i64>("DEL", &due, &[]).await, 1);
    assert!(rig.finish(&key, &id, &run).await);
    assert_eq!(rig.due(key.shard(), 10).await.names, std::slice::from_ref(&key));
    rig.start(&key, &next, &stranger()).await;
}

/// Waits for so long, and dies.
async fn die_in_line(rig: &Rig, key: &Key) {
    rig.acquire(AcquireCommand { max_wait: Some(SHORT), ..ask(key, &stranger()) }).await;
}

async fn dead_places_leave_no_fields_in_a_line_that_always_has_jobs(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.hold(&key, &stranger()).await;
    let id = rig.put_off(&key).await;
    let facts = format!("{{{}}}:l:{key}", key.shard());
    for _ in 0..3 {
        for _ in 0..5 {
            die_in_line(rig, &key).await;
        }
        rig.pass(SHORT).await;
    }
    let fields: i64 = rig.server().raw("HLEN", &facts, &[]).await;
    assert_eq!(fields, 5 + 1, "those of the latest line, and the bytes");
    // What else is in there stays: the room it takes, and the backoff.
    let bytes: String = rig.server().raw("HGET", &facts, &["bytes"]).await;
    assert_eq!(bytes, "7");
    rig.pass(LONG).await;
    rig.start(&key, &id, &run).await;
    let verdict = Settlement::Retry { delay: LONG / 2, reason: "status 503" };
    assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
    rig.hold(&key, &run).await;
    rig.join(&key, &stranger()).await;
    let fields: i64 = rig.server().raw("HLEN", &facts, &[]).await;
    assert_eq!(fields, 1 + 2, "one place, bytes and backoff");
    let later = rig.claim(visit(&key, &id, &stranger())).await;
    assert!(matches!(later, ClaimOutcome::NotDue(_)), "{later:?}");
}

async fn fields_of_places_go_with_the_last_job(rig: &Rig) {
    let key = key();
    rig.hold(&key, &stranger()).await;
    let id = rig.put_off(&key).await;
    die_in_line(rig, &key).await;
    rig.cancel(&id).await;
    rig.pass(SHORT).await;
    let id = rig.put_off(&key).await;
    die_in_line(rig, &key).await;
    rig.pass(SHORT).await;
    rig.cancel(&id).await;
    let left = rig.server().names().await;
    let line = left.iter().any(|name| name.contains("}:l:"));
    assert!(!line, "{left:?}");
}

/// Keys that are left when all has ended: those that never expire by design.
pub(super) fn lasting(name: &str) -> bool {
    ["{0}:meta", "{0}:workers"].contains(&name)
        || name.ends_with("}:f")
        || name.ends_with("}:watch")
}

async fn nothing_is_left_when_everything_has_ended(rig: &Rig) {
    let (key, a, b, run) = (key(), stranger(), stranger(), stranger());
    rig.worker().await;
    rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, &a) }).await;
    rig.join(&key, &b).await;
    let mut call = deferred(&key);
    call.idempotency_record = Some(("idem".into(), "print".into(), LONG));
    let ran = call.id.clone();
    rig.enqueue(call).await;
    let cancelled = rig.put_off(&key).await;
    rig.cancel(&cancelled).await;
    rig.pass(SHORT).await;
    rig.release(&key, &b).await;
    rig.start(&key, &ran, &run).await;
    rig.finish(&key, &ran, &run).await;
    // Whatever is still there has an end of its own, and nobody has to come for it.
    // An index may outlive its last entry by an eighth.
    rig.pass(LONG * 2).await;
    let left = rig.server().names().await;
    let left: Vec<_> = left.iter().filter(|name| !lasting(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}
