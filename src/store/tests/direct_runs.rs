//! Direct runs: requests with an idempotency record that run at once.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, enqueue_command, new_token, test_key,
        try_acquire_command,
    },
};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, BeginDirectOutcome, DirectRunCommand, EnqueueCommand,
        EnqueueOutcome, JobId, JobState, LockMode, StorageLimits,
    },
};

on_every_store!(
    idempotency_record_is_taken_once,
    finished_run_keeps_its_response,
    fingerprint_mismatch_is_reported_after_run_ends,
    run_without_response_frees_its_record,
    finish_of_unstarted_run_changes_nothing,
    run_and_record_expire_after_retention,
    queued_job_owns_its_record,
    begin_without_lock_reports_lock_lost,
    renewed_run_keeps_its_record,
    crashed_run_becomes_dead_letter,
    crashed_retryable_run_frees_its_record,
    run_marked_dead_keeps_reason_and_record,
);

fn direct_run_command(key: &Key) -> DirectRunCommand {
    let (id, owner) = (JobId::new(key), "tenant 1".to_owned());
    let (key, token) = (key.clone(), new_token());
    DirectRunCommand {
        key,
        token,
        mode: LockMode::Exclusive,
        record_name: "idem".into(),
        id,
        owner,
        retention: LONG_TIME,
        lease: SHORT_TIME,
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    }
}

async fn begin_without_acquire(rig: &StoreHarness, call: &DirectRunCommand) -> BeginDirectOutcome {
    rig.backend().begin_direct(call.clone()).await.unwrap()
}

/// Begins under the lock. Returns the job that has the record, if it is another one.
async fn begin_under_lock(rig: &StoreHarness, call: &DirectRunCommand) -> Option<JobId> {
    rig.acquire_exclusive(&call.key, &call.token).await;
    let began = begin_without_acquire(rig, call).await;
    rig.release(&call.key, &call.token).await;
    match began {
        BeginDirectOutcome::Started => None,
        BeginDirectOutcome::RecordTaken(id) => Some(id),
        BeginDirectOutcome::LockLost => panic!("its lock is held"),
        BeginDirectOutcome::TooManyRecords(retry_after) => {
            panic!("the record limit is not reached: {retry_after:?}")
        }
    }
}

async fn finish_run(rig: &StoreHarness, call: &DirectRunCommand, response: Option<&'static str>) {
    let response = response.map(|text| Bytes::from_static(text.as_bytes()));
    rig.backend().finish_direct(call.clone(), response).await.unwrap();
}

fn job_with_record(key: &Key) -> EnqueueCommand {
    EnqueueCommand {
        idempotency_record: Some(("idem".into(), "print".into(), LONG_TIME)),
        ..enqueue_command(key)
    }
}

async fn idempotency_record_is_taken_once(rig: &StoreHarness) {
    let (key, a) = (test_key(), new_token());
    let (one, two) = (direct_run_command(&key), direct_run_command(&key));
    for _ in 0..2 {
        assert_eq!(begin_under_lock(rig, &one).await, None);
    }
    assert_eq!(begin_under_lock(rig, &two).await, Some(one.id.clone()));
    assert_eq!(rig.job_view(&two.id).await, None);
    let job = rig.job_view(&one.id).await.unwrap();
    assert_eq!((job.state, job.attempts, job.position), (JobState::Running, 1, None));
    assert_eq!(job.owner, "tenant 1");
    // Without a fingerprint, the request counts as the same.
    assert_eq!(rig.enqueue(job_with_record(&key)).await, EnqueueOutcome::Duplicate(one.id.clone()));
    let call = AcquireCommand { record_name: Some("idem".into()), ..try_acquire_command(&key, &a) };
    assert_eq!(rig.acquire(call).await, AcquireReply::AlreadyAccepted);
    // A direct run has no queue entry and cannot be cancelled.
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert_eq!(rig.cancel(&one.id).await, Some(JobState::Running));
    rig.acquire_exclusive(&key, &a).await;
}

async fn finished_run_keeps_its_response(rig: &StoreHarness) {
    let key = test_key();
    let call = direct_run_command(&key);
    begin_under_lock(rig, &call).await;
    rig.advance_past(LONG_TIME / 2).await;
    for _ in 0..2 {
        finish_run(rig, &call, Some("answer")).await;
    }
    finish_run(rig, &call, None).await;
    rig.advance_past(LONG_TIME / 2).await;
    let job = rig.job_view(&call.id).await.unwrap();
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
    assert_eq!(rig.enqueue(job_with_record(&key)).await, EnqueueOutcome::Duplicate(call.id));
}

async fn fingerprint_mismatch_is_reported_after_run_ends(rig: &StoreHarness) {
    let key = test_key();
    let cases = [(Some("print"), true), (Some("other"), false), (None, true)];
    for (index, (print, is_match)) in cases.into_iter().enumerate() {
        let record: Arc<str> = index.to_string().into();
        let call =
            DirectRunCommand { record_name: Arc::clone(&record), ..direct_run_command(&key) };
        let command = |key: &Key| {
            let record = Some((Arc::clone(&record), "print".into(), LONG_TIME));
            EnqueueCommand { idempotency_record: record, ..enqueue_command(key) }
        };
        begin_under_lock(rig, &call).await;
        assert_eq!(
            rig.enqueue(command(&key)).await,
            EnqueueOutcome::Duplicate(call.id.clone()),
            "not yet"
        );
        let ended = DirectRunCommand { fingerprint: print.map(str::to_owned), ..call.clone() };
        finish_run(rig, &ended, Some("answer")).await;
        let expected = if is_match {
            EnqueueOutcome::Duplicate(call.id.clone())
        } else {
            EnqueueOutcome::FingerprintMismatch
        };
        assert_eq!(rig.enqueue(command(&key)).await, expected, "{print:?}");
    }
}

async fn run_without_response_frees_its_record(rig: &StoreHarness) {
    let key = test_key();
    let (one, two) = (direct_run_command(&key), direct_run_command(&key));
    begin_under_lock(rig, &one).await;
    finish_run(rig, &one, None).await;
    assert_eq!(rig.job_view(&one.id).await, None);
    assert_eq!(begin_under_lock(rig, &two).await, None);
    finish_run(rig, &one, None).await;
    assert_eq!(
        begin_under_lock(rig, &one).await,
        Some(two.id.clone()),
        "the other one's was not touched"
    );
    assert_eq!(rig.job_state(&two.id).await, Some(JobState::Running));
}

async fn finish_of_unstarted_run_changes_nothing(rig: &StoreHarness) {
    let key = test_key();
    let call = direct_run_command(&key);
    finish_run(rig, &call, Some("answer")).await;
    assert_eq!(rig.job_view(&call.id).await, None);
    // A queued job is no direct run, even under the same id.
    let queued = job_with_record(&key);
    assert_eq!(rig.enqueue(queued.clone()).await, EnqueueOutcome::Stored { position: 1 });
    let call = DirectRunCommand { id: queued.id.clone(), ..call };
    for response in [Some("answer"), None] {
        finish_run(rig, &call, response).await;
        assert_eq!(rig.job_state(&queued.id).await, Some(JobState::Queued));
    }
    assert_eq!(rig.enqueue(job_with_record(&key)).await, EnqueueOutcome::Duplicate(queued.id));
}

async fn run_and_record_expire_after_retention(rig: &StoreHarness) {
    let key = test_key();
    let call = DirectRunCommand { retention: SHORT_TIME, ..direct_run_command(&key) };
    begin_under_lock(rig, &call).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.job_view(&call.id).await, None);
    let next = direct_run_command(&key);
    assert_eq!(begin_under_lock(rig, &next).await, None);
    finish_run(rig, &call, Some("answer")).await;
    assert_eq!(rig.job_view(&call.id).await, None);
    assert_eq!(rig.job_state(&next.id).await, Some(JobState::Running));
}

async fn queued_job_owns_its_record(rig: &StoreHarness) {
    let key = test_key();
    let queued = job_with_record(&key);
    rig.enqueue(queued.clone()).await;
    assert_eq!(begin_under_lock(rig, &direct_run_command(&key)).await, Some(queued.id));
}

/// Such a begin is a late copy: its sender has already ended the record.
async fn begin_without_lock_reports_lock_lost(rig: &StoreHarness) {
    let (key, other) = (test_key(), new_token());
    let call = direct_run_command(&key);
    assert_eq!(begin_without_acquire(rig, &call).await, BeginDirectOutcome::LockLost, "never held");
    begin_under_lock(rig, &call).await;
    finish_run(rig, &call, None).await;
    assert_eq!(
        begin_without_acquire(rig, &call).await,
        BeginDirectOutcome::LockLost,
        "the lock is released"
    );
    rig.acquire_exclusive(&key, &call.token).await;
    rig.advance_past(LONG_TIME).await;
    assert_eq!(
        begin_without_acquire(rig, &call).await,
        BeginDirectOutcome::LockLost,
        "its lease is over"
    );
    rig.acquire_exclusive(&key, &other).await;
    assert_eq!(
        begin_without_acquire(rig, &call).await,
        BeginDirectOutcome::LockLost,
        "the run of another token"
    );
    rig.release(&key, &other).await;
    assert_eq!(rig.job_view(&call.id).await, None);
    let retry =
        AcquireCommand { record_name: Some("idem".into()), ..try_acquire_command(&key, &other) };
    let reply = rig.acquire(retry).await;
    assert!(matches!(reply, AcquireReply::Granted { .. }), "a retry runs: {reply:?}");
    rig.release(&key, &other).await;
    // A repeated begin finds the record that it has taken, whatever has happened to its lock since.
    begin_under_lock(rig, &call).await;
    assert_eq!(begin_without_acquire(rig, &call).await, BeginDirectOutcome::Started);
}

async fn renewed_run_keeps_its_record(rig: &StoreHarness) {
    let key = test_key();
    // The record's retention is shorter than the run.
    let call = DirectRunCommand { retention: SHORT_TIME / 2, ..direct_run_command(&key) };
    begin_under_lock(rig, &call).await;
    for _ in 0..3 {
        rig.advance_past(SHORT_TIME * 3 / 4).await;
        assert!(rig.backend().renew_direct(call.clone()).await.unwrap());
        assert_eq!(
            rig.enqueue(job_with_record(&key)).await,
            EnqueueOutcome::Duplicate(call.id.clone())
        );
        assert_eq!(rig.job_state(&call.id).await, Some(JobState::Running));
    }
    finish_run(rig, &call, Some("answer")).await;
    assert!(!rig.backend().renew_direct(call.clone()).await.unwrap(), "it has ended");
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Done));
}

/// Returns true if a retry with the same record gets the lock.
async fn retry_acquires_lock(rig: &StoreHarness, key: &Key) -> bool {
    let token = new_token();
    let retry =
        AcquireCommand { record_name: Some("idem".into()), ..try_acquire_command(key, &token) };
    let reply = rig.acquire(retry).await;
    rig.release(key, &token).await;
    matches!(reply, AcquireReply::Granted { .. })
}

async fn crashed_run_becomes_dead_letter(rig: &StoreHarness) {
    let key = test_key();
    let call = direct_run_command(&key);
    begin_under_lock(rig, &call).await;
    rig.advance_past(SHORT_TIME).await;
    assert!(!retry_acquires_lock(rig, &key).await);
    for _ in 0..2 {
        assert_eq!(
            rig.enqueue(job_with_record(&key)).await,
            EnqueueOutcome::Duplicate(call.id.clone())
        );
        assert_eq!(begin_under_lock(rig, &direct_run_command(&key)).await, Some(call.id.clone()));
        let job = rig.job_view(&call.id).await.unwrap();
        assert_eq!(job.state, JobState::Dead);
        assert_eq!(job.reason.as_deref(), Some("crashed, may have run"));
    }
    assert_eq!(rig.shard_stats(key.shard()).await.dead, 1);
    // The run was only slow. Its end is void, as for a deferred run.
    assert!(!rig.backend().finish_direct(call.clone(), Some("answer".into())).await.unwrap());
    assert!(!rig.backend().mark_direct_dead(call.clone(), "stopped").await.unwrap());
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Dead));
    rig.advance_past(LONG_TIME).await;
    assert!(retry_acquires_lock(rig, &key).await, "its record is over");
}

async fn crashed_retryable_run_frees_its_record(rig: &StoreHarness) {
    for operation in ["acquire", "enqueue", "begin"] {
        let key = Key::custom(operation);
        let call = DirectRunCommand { retry_after_crash: true, ..direct_run_command(&key) };
        begin_under_lock(rig, &call).await;
        assert!(!retry_acquires_lock(rig, &key).await);
        rig.advance_past(SHORT_TIME).await;
        match operation {
            "acquire" => assert!(retry_acquires_lock(rig, &key).await),
            "enqueue" => {
                assert_eq!(
                    rig.enqueue(job_with_record(&key)).await,
                    EnqueueOutcome::Stored { position: 1 }
                );
            }
            _ => assert_eq!(begin_under_lock(rig, &direct_run_command(&key)).await, None),
        }
        assert_eq!(rig.job_view(&call.id).await, None, "{operation}");
        assert!(!rig.backend().renew_direct(call.clone()).await.unwrap(), "{operation}");
    }
}

async fn run_marked_dead_keeps_reason_and_record(rig: &StoreHarness) {
    let key = test_key();
    let call = direct_run_command(&key);
    let mark_dead = || rig.backend().mark_direct_dead(call.clone(), "stopped, may have run");
    assert!(!mark_dead().await.unwrap(), "nothing has begun");
    begin_under_lock(rig, &call).await;
    assert!(mark_dead().await.unwrap());
    assert!(!mark_dead().await.unwrap(), "once");
    finish_run(rig, &call, None).await;
    let job = rig.job_view(&call.id).await.unwrap();
    assert_eq!(job.state, JobState::Dead);
    assert_eq!(job.reason.as_deref(), Some("stopped, may have run"));
    assert_eq!(rig.enqueue(job_with_record(&key)).await, EnqueueOutcome::Duplicate(call.id));
}
