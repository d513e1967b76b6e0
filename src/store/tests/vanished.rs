//! Keys of waiting requests that somebody has taken away, and what is left when all has ended.

use std::time::Duration;

use super::{
    redis_only::lasting,
    rig::{LONG, Rig, SHORT, deferred, key, neighbours, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{
        ClaimOutcome, DirectRunCommand, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        LockMode, MergeMode, MergePolicy, OnFailure, Settlement, StorageLimits, WebhookJobSpec,
    },
};

pub(super) fn late(key: &Key, delay: Duration, deadline: Option<Duration>) -> EnqueueCommand {
    let call = deferred(key);
    EnqueueCommand { policy: JobPolicy { delay, deadline, ..call.policy }, ..call }
}

pub(super) async fn stored(rig: &Rig, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = rig.enqueue(call).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

pub(super) async fn vanishes(rig: &Rig, key: &Key, name: &str) {
    let name = format!("{{{}}}:{name}", key.shard());
    assert_eq!(rig.server().raw::<i64>("DEL", &name, &[]).await, 1, "{name}");
}

/// Number and bytes of the jobs of the key's shard.
pub(super) async fn counted(rig: &Rig, key: &Key) -> Vec<String> {
    let facts = format!("{{{}}}:f", key.shard());
    rig.server().raw("HMGET", &facts, &["jobs", "bytes"]).await
}

/// What is left, of what does not last by design.
async fn left(rig: &Rig) -> Vec<String> {
    let mut names = rig.server().names().await;
    names.retain(|name| !lasting(name));
    names
}

#[tokio::test]
async fn a_late_job_whose_facts_vanished_is_forgotten() {
    let rig = Rig::redis().await;
    let key = key();
    let id = stored(&rig, late(&key, SHORT, Some(LONG))).await;
    vanishes(&rig, &key, &format!("j:{id}")).await;
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    rig.pass(LONG).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    assert_eq!(left(&rig).await, [""; 0]);
}

#[tokio::test]
async fn jobs_whose_facts_vanished_do_not_count_for_their_owner() {
    let rig = Rig::redis().await;
    let key = key();
    let caps = StorageLimits { owner_jobs: 2, ..StorageLimits::NONE };
    let call = || EnqueueCommand { owner: "ada".into(), limits: caps, ..deferred(&key) };
    let (first, second) = (stored(&rig, call()).await, stored(&rig, call()).await);
    assert_eq!(rig.enqueue(call()).await, EnqueueOutcome::Full);
    vanishes(&rig, &key, &format!("j:{first}")).await;
    let third = stored(&rig, call()).await;
    assert_eq!(rig.enqueue(call()).await, EnqueueOutcome::Full);
    // What was counted has vanished: it never goes below nothing.
    vanishes(&rig, &key, "o:ada").await;
    let fourth = stored(&rig, call()).await;
    for id in [second, third, fourth] {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    let owned = format!("{{{}}}:o:ada", key.shard());
    assert_eq!(rig.server().raw::<i64>("EXISTS", &owned, &[]).await, 0);
    stored(&rig, call()).await;
    let ttl: i64 = rig.server().raw("PTTL", &owned, &[]).await;
    assert!(ttl > 0, "it has an end, should its jobs vanish");
}

/// A job with a call.
pub(super) fn called(job: EnqueueCommand) -> EnqueueCommand {
    let key = Key::for_webhook(job.id.as_str(), job.id.shard());
    let id = JobId::new(&key);
    EnqueueCommand {
        webhook: Some(WebhookJobSpec { id, key, envelope: "call".into(), max_attempts: 1 }),
        ..job
    }
}

#[tokio::test]
async fn what_was_to_be_told_goes_with_the_facts() {
    let rig = Rig::redis().await;
    rig.worker().await;
    let key = key();
    for delay in [Duration::ZERO, SHORT] {
        let id = stored(&rig, called(late(&key, delay, None))).await;
        vanishes(&rig, &key, &format!("j:{id}")).await;
        rig.pass(SHORT).await;
        rig.due(key.shard(), 10).await;
        rig.claim(visit(&key, &id, &stranger())).await;
        assert_eq!(counted(&rig, &key).await, ["0", "0"], "{delay:?}");
    }
    // Without its request there is no call.
    let id = stored(&rig, called(deferred(&key))).await;
    vanishes(&rig, &key, &format!("t:{id}")).await;
    assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    rig.pass(LONG * 200).await;
    rig.backend().heartbeat(crate::store::backend::NodeId::new(), LONG).await.unwrap();
    let left = left(&rig).await;
    assert!(left.iter().all(|name| name.ends_with("workers")), "{left:?}");
}

#[tokio::test]
async fn a_late_job_that_no_index_knows_can_be_cancelled() {
    let rig = Rig::redis().await;
    let key = key();
    for index in ["late", "lates"] {
        let id = stored(&rig, late(&key, SHORT, Some(LONG))).await;
        vanishes(&rig, &key, index).await;
        rig.pass(SHORT).await;
        rig.due(key.shard(), 10).await;
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled), "{index}");
        assert_eq!(counted(&rig, &key).await, ["0", "0"], "{index}");
    }
    rig.pass(LONG).await;
    assert_eq!(left(&rig).await, [""; 0]);
}

#[tokio::test]
async fn a_job_of_a_lost_line_can_be_cancelled() {
    let rig = Rig::redis().await;
    let (key, a) = (key(), stranger());
    rig.hold(&key, &a).await;
    let ids = [rig.put_off(&key).await, rig.put_off(&key).await];
    vanishes(&rig, &key, &format!("g:{key}")).await;
    for id in ids {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    rig.pass(LONG).await;
    assert_eq!(left(&rig).await, [""; 0]);
}

#[tokio::test]
async fn a_lost_line_merges_nothing_into_what_is_lost() {
    let rig = Rig::redis().await;
    let key = key();
    let call = || {
        let merge = Some(MergePolicy { group: "0f".into(), mode: MergeMode::Coalesce });
        EnqueueCommand { merge, ..deferred(&key) }
    };
    stored(&rig, call()).await;
    vanishes(&rig, &key, &format!("g:{key}")).await;
    let id = stored(&rig, call()).await;
    assert_eq!(rig.start(&key, &id, &stranger()).await, 1);
}

#[tokio::test]
async fn a_deadline_that_no_index_knows_is_looked_at_when_it_runs() {
    let rig = Rig::redis().await;
    let key = key();
    let id = stored(&rig, late(&key, Duration::ZERO, Some(SHORT))).await;
    vanishes(&rig, &key, "exp").await;
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(rig.state(&id).await, Some(JobState::Queued));
    rig.claim(visit(&key, &id, &stranger())).await;
    assert_eq!(rig.state(&id).await, Some(JobState::Expired));
}

#[tokio::test]
async fn late_jobs_outlive_the_shards_counters() {
    let rig = Rig::redis().await;
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let id = stored(&rig, late(&key, SHORT, None)).await;
    vanishes(&rig, &key, "f").await;
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(rig.start(&key, &id, &run).await, 1);
    assert!(rig.finish(&key, &id, &run).await);
    assert_eq!(counted(&rig, &key).await, ["0", "0"], "never below");
}

#[tokio::test]
async fn the_server_forgets_the_scripts() {
    let rig = Rig::redis().await;
    let [key, other] = neighbours::<2>();
    let id = stored(&rig, late(&key, SHORT, None)).await;
    rig.server().forget_scripts().await;
    let again = stored(&rig, late(&other, SHORT, None)).await;
    rig.server().forget_scripts().await;
    assert_eq!(rig.cancel(&again).await, Some(JobState::Cancelled));
    rig.pass(SHORT).await;
    rig.server().forget_scripts().await;
    assert_eq!(rig.due(key.shard(), 10).await.names, std::slice::from_ref(&key));
    assert_eq!(rig.heads(&[key]).await, [Some(id)]);
}

/// Everything at once: whatever is there afterwards has an end of its own, and nobody has to come for it.
#[tokio::test]
async fn nothing_is_left_of_those_that_waited() {
    let rig = Rig::redis().await;
    let (key, run) = (key(), stranger());
    let direct = DirectRunCommand {
        key: key.clone(),
        token: stranger(),
        mode: LockMode::Exclusive,
        record_name: "other".into(),
        id: JobId::new(&key),
        owner: String::new(),
        retention: LONG,
        lease: Duration::from_secs(600),
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    };
    rig.hold(&key, &direct.token).await;
    rig.backend().begin_direct(direct.clone()).await.unwrap();
    rig.release(&key, &direct.token).await;
    rig.worker().await;
    let merge = |wins| Some(MergePolicy { group: "0f".into(), mode: wins });
    let record = Some(("idem".into(), "print".into(), LONG));
    // Superseded, merged, expired in line and late, cancelled late, tried again while others pass.
    stored(
        &rig,
        EnqueueCommand { merge: merge(MergeMode::Supersede), ..late(&key, LONG, Some(LONG)) },
    )
    .await;
    let last = stored(
        &rig,
        EnqueueCommand {
            merge: merge(MergeMode::Supersede),
            idempotency_record: record,
            ..deferred(&key)
        },
    )
    .await;
    let merged = EnqueueCommand { merge: merge(MergeMode::Coalesce), ..deferred(&key) };
    assert_eq!(rig.enqueue(merged).await, EnqueueOutcome::Merged(last.clone()));
    stored(&rig, late(&key, Duration::ZERO, Some(SHORT))).await;
    stored(&rig, late(&key, LONG, Some(SHORT))).await;
    let cancelled = stored(&rig, late(&key, LONG, None)).await;
    rig.cancel(&cancelled).await;
    let mut skips = late(&key, SHORT, Some(LONG));
    skips.policy.on_failure = OnFailure::Skip;
    let skips = stored(&rig, skips).await;
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    rig.start(&key, &last, &run).await;
    rig.finish(&key, &last, &run).await;
    let run = stranger();
    rig.start(&key, &skips, &run).await;
    let retry = Settlement::Retry { delay: SHORT, reason: "status 503" };
    assert!(rig.settle(settled(&key, &skips, &run, retry)).await);
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    let run = stranger();
    assert_eq!(rig.start(&key, &skips, &run).await, 2);
    rig.finish(&key, &skips, &run).await;
    rig.backend().finish_direct(direct, Some("answer".into())).await.unwrap();
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    for name in rig.server().names().await.iter().filter(|name| !lasting(name)) {
        let ttl: i64 = rig.server().raw("PTTL", name, &[]).await;
        assert!(ttl > 0, "{name} has no end");
    }
    rig.pass(LONG * 200).await;
    assert_eq!(left(&rig).await, [""; 0]);
}

#[tokio::test]
async fn a_job_that_ended_without_its_facts_does_not_count_for_its_owner() {
    let rig = Rig::redis().await;
    let key = key();
    let caps = StorageLimits { owner_jobs: 1, ..StorageLimits::NONE };
    let call = || EnqueueCommand { owner: "ada".into(), limits: caps, ..deferred(&key) };
    let id = stored(&rig, call()).await;
    vanishes(&rig, &key, &format!("j:{id}")).await;
    assert_eq!(rig.claim(visit(&key, &id, &stranger())).await, ClaimOutcome::Ended(id.clone()));
    assert_eq!(rig.state(&id).await, Some(JobState::Dead), "it is kept");
    stored(&rig, call()).await;
    assert_eq!(rig.enqueue(call()).await, EnqueueOutcome::Full);
}
