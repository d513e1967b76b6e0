//! Keys that were taken away in part: a field, or one of the keys of a job. Nothing stands still for it.

use bytes::Bytes;

use super::{
    rig::{LONG, Rig, SHORT, again, deferred, key, stranger, visit},
    vanished::{counted, late, stored, vanishes},
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, DirectRunCommand, EnqueueCommand, EnqueueOutcome, JobId,
        JobState, LockMode, StorageLimits,
    },
};

async fn loses(rig: &Rig, key: &Key, id: &JobId, field: &str) {
    let name = format!("{{{}}}:j:{id}", key.shard());
    assert_eq!(rig.server().raw::<i64>("HDEL", &name, &[field]).await, 1, "{field}");
}

#[tokio::test]
async fn a_run_that_crashed_without_its_bound_is_buried() {
    let rig = Rig::redis().await;
    let key = key();
    let (id, next) = (stored(&rig, again(&key)).await, stored(&rig, again(&key)).await);
    let claim = ClaimCommand { lease: SHORT, ..visit(&key, &id, &stranger()) };
    assert!(matches!(rig.claim(claim).await, ClaimOutcome::Claimed(_)));
    loses(&rig, &key, &id, "max").await;
    rig.pass(SHORT).await;
    assert_eq!(rig.claim(visit(&key, &id, &stranger())).await, ClaimOutcome::Ended(id));
    rig.start(&key, &next, &stranger()).await;
}

#[tokio::test]
async fn a_late_job_of_no_lock_is_forgotten() {
    let rig = Rig::redis().await;
    let key = key();
    let id = stored(&rig, late(&key, SHORT, None)).await;
    loses(&rig, &key, &id, "lock").await;
    rig.pass(SHORT).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    let left = rig.server().names().await;
    assert!(!left.iter().any(|name| name.contains(id.as_str())), "{left:?}");
}

#[tokio::test]
async fn bytes_of_what_has_vanished_do_not_count_for_ever() {
    let rig = Rig::redis().await;
    let key = key();
    for _ in 0..3 {
        let id = stored(&rig, deferred(&key)).await;
        vanishes(&rig, &key, &format!("j:{id}")).await;
        vanishes(&rig, &key, &format!("b:{id}")).await;
        assert_eq!(rig.claim(visit(&key, &id, &stranger())).await, ClaimOutcome::Ended(id));
        assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    }
    // Nor where another one is the last, and ends well.
    let (id, last) = (stored(&rig, deferred(&key)).await, stored(&rig, deferred(&key)).await);
    vanishes(&rig, &key, &format!("j:{id}")).await;
    vanishes(&rig, &key, &format!("b:{id}")).await;
    assert_eq!(rig.claim(visit(&key, &id, &stranger())).await, ClaimOutcome::Ended(id));
    let run = stranger();
    rig.start(&key, &last, &run).await;
    assert!(rig.finish(&key, &last, &run).await);
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
}

#[tokio::test]
async fn a_response_that_vanished_is_none() {
    let rig = Rig::redis().await;
    let (key, run) = (key(), stranger());
    let id = stored(&rig, deferred(&key)).await;
    rig.start(&key, &id, &run).await;
    assert!(rig.finish(&key, &id, &run).await);
    assert!(rig.job(&id).await.is_some_and(|job| job.response.is_some()));
    vanishes(&rig, &key, &format!("r:{id}")).await;
    let job = rig.job(&id).await.expect("its facts are there");
    assert_eq!((job.state, job.response), (JobState::Done, None));
}

/// A retry finds that it has run.
#[tokio::test]
async fn a_record_that_vanished_while_its_request_ran_is_written_again() {
    let rig = Rig::redis().await;
    let (key, me) = (key(), stranger());
    let (id, mode, owner) = (JobId::new(&key), LockMode::Exclusive, String::new());
    let (record, life) = ("idem".to_owned().into(), LONG);
    let call = DirectRunCommand {
        key: key.clone(),
        token: me,
        mode,
        record_name: record,
        id,
        owner,
        retention: life,
        lease: life,
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    };
    rig.hold(&key, &call.token).await;
    rig.backend().begin_direct(call.clone()).await.unwrap();
    let names = rig.server().names().await;
    let record = names.iter().find(|name| name.contains("}:i:")).expect("it began");
    assert_eq!(rig.server().raw::<i64>("DEL", record, &[]).await, 1);
    rig.backend().finish_direct(call.clone(), Some(Bytes::from_static(b"answer"))).await.unwrap();
    let keyed = EnqueueCommand {
        idempotency_record: Some(("idem".into(), "print".into(), LONG)),
        ..deferred(&key)
    };
    assert_eq!(rig.enqueue(keyed).await, EnqueueOutcome::Duplicate(call.id));
}
