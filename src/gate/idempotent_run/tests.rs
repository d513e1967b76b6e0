//! Direct runs with late calls, or with an end during an outage.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{BeginOutcome, IdempotentRun, RunLimits};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        AcquireCommand, AcquireReply, BackendFault, DirectRunCommand, FaultSchedule, JobId,
        JobState, LockMode, LockToken, StorageLimits, Store, faulty_store,
    },
};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

const RUN_LIMITS: RunLimits = RunLimits { max_runs: 8, max_detached_time: LEASE };

/// Longer than the longest pause of a repeated undo, far shorter than a lease.
const UNDO_TIMEOUT: Duration = Duration::from_secs(4);

fn acquire_command(store: &Store, record: Option<Arc<str>>) -> AcquireCommand {
    let (key, me) = (Key::custom("x"), LockToken::new(store.node()));
    AcquireCommand {
        key,
        token: me,
        mode: LockMode::Exclusive,
        lease: LEASE,
        max_wait: None,
        resume_seq: 0,
        record_name: record,
    }
}

/// Acquires the lock and returns the command that begins the direct run.
pub(in crate::gate) async fn acquire_for_direct_run(store: &Store) -> DirectRunCommand {
    let call = acquire_command(store, Some("idem".into()));
    let answer = store.backend().acquire(call.clone()).await.unwrap();
    assert!(matches!(answer, AcquireReply::Granted { .. }), "{answer:?}");
    let AcquireCommand { key, token: me, .. } = call;
    let (id, record, life) = (JobId::new(&key), "idem".into(), 60 * SECOND);
    let (mode, owner, print) = (LockMode::Exclusive, String::new(), None);
    DirectRunCommand {
        key,
        token: me,
        mode,
        record_name: record,
        id,
        owner,
        retention: life,
        lease: LEASE,
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: print,
    }
}

pub(in crate::gate) async fn begin_run(store: &Store, call: &DirectRunCommand) -> IdempotentRun {
    match IdempotentRun::begin(store, call.clone(), RUN_LIMITS).await.unwrap() {
        BeginOutcome::Started(started_run) => started_run,
        BeginOutcome::Taken
        | BeginOutcome::LockLost
        | BeginOutcome::AtCapacity
        | BeginOutcome::TooManyKeys(_) => {
            panic!("it is the first, and has its lock")
        }
    }
}

/// Releases the lock and retries under the same idempotency key.
async fn release_and_retry(store: &Store, call: &DirectRunCommand) -> AcquireReply {
    let (key, me) = (call.key.clone(), call.token.clone());
    store.backend().release(key, me, LockMode::Exclusive).await.unwrap();
    store.backend().acquire(acquire_command(store, Some("idem".into()))).await.unwrap()
}

async fn assert_retry_runs(store: &Store, call: &DirectRunCommand, context: &str) {
    let reply = release_and_retry(store, call).await;
    assert!(matches!(reply, AcquireReply::Granted { .. }), "{context}: {reply:?}");
    assert_eq!(store.backend().job_view(call.id.clone()).await.unwrap(), None, "{context}");
}

async fn begin_with_late_call(store: &Store, faults: &FaultSchedule, call: &DirectRunCommand) {
    faults.set("begin_direct", BackendFault::TimeoutThenRun(SECOND), 1);
    let error =
        IdempotentRun::begin(store, call.clone(), RUN_LIMITS).await.err().expect("no answer comes");
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn begin_arriving_after_its_undo_is_undone() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    begin_with_late_call(&store, &faults, &call).await;
    tokio::time::sleep(UNDO_TIMEOUT).await;
    assert_retry_runs(&store, &call, "the store answers").await;

    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    faults.set("end_direct", BackendFault::Unavailable, 6);
    begin_with_late_call(&store, &faults, &call).await;
    tokio::time::sleep(UNDO_TIMEOUT).await;
    assert_eq!(faults.remaining("end_direct"), 0);
    assert_retry_runs(&store, &call, "the store is unavailable at first").await;
}

#[tokio::test(start_paused = true)]
async fn begin_copy_arriving_after_its_undo_is_undone() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    faults.set("begin_direct", BackendFault::DuplicateRun(SECOND), 1);
    begin_run(&store, &call).await.forget().await;
    tokio::time::sleep(UNDO_TIMEOUT).await;
    assert_retry_runs(&store, &call, "copied").await;
}

/// The known run is already undone, so a shutdown does not wait for a copy of its call. A later
/// copy is undone, too.
#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_copy_of_an_ended_run() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    faults.set("begin_direct", BackendFault::DuplicateRun(SECOND), 1);
    begin_run(&store, &call).await.forget().await;
    assert_prompt_shutdown(&store).await;
    tokio::time::sleep(UNDO_TIMEOUT).await;
    assert_retry_runs(&store, &call, "copied").await;
}

/// The run was not started, so nothing is left to undo.
#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_copy_of_an_unstarted_run() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    let (key, me) = (call.key.clone(), call.token.clone());
    store.backend().release(key, me, LockMode::Exclusive).await.unwrap();
    faults.set("begin_direct", BackendFault::DuplicateRun(SECOND), 1);
    let begin = IdempotentRun::begin(&store, call, RUN_LIMITS).await;
    assert!(matches!(begin, Ok(BeginOutcome::LockLost)), "it has no lock");
    assert_prompt_shutdown(&store).await;
    tokio::time::sleep(UNDO_TIMEOUT).await;
    assert_eq!(faults.call_count("begin_direct"), 1);
    assert!(faults.call_count("end_direct") > 0, "the late call is undone");
}

async fn assert_prompt_shutdown(store: &Store) {
    let started = Instant::now();
    assert!(store.shutdown(UNDO_TIMEOUT).await, "it waits for a call that may never arrive");
    assert!(started.elapsed() < SECOND / 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn run_end_reaches_a_recovered_store() {
    for ending in ["forgotten", "dropped"] {
        let (store, faults) = faulty_store();
        let call = acquire_for_direct_run(&store).await;
        let started_run = begin_run(&store, &call).await;
        faults.set("end_direct", BackendFault::Unavailable, 6);
        match ending {
            "forgotten" => started_run.forget().await,
            _ => drop(started_run),
        }
        assert!(store.shutdown(UNDO_TIMEOUT).await, "it waits for that");
        assert_eq!(faults.remaining("end_direct"), 0, "{ending}");
        assert_retry_runs(&store, &call, ending).await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_response_reaches_a_recovered_store() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    let started_run = begin_run(&store, &call).await;
    faults.set("end_direct", BackendFault::Unavailable, 6);
    started_run.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    assert!(store.shutdown(UNDO_TIMEOUT).await, "it waits for that");
    assert_eq!(release_and_retry(&store, &call).await, AcquireReply::AlreadyAccepted);
    let job = store.backend().job_view(call.id.clone()).await.unwrap().expect("it is stored");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}

/// Without a call in doubt, one call ends each run.
#[tokio::test(start_paused = true)]
async fn run_without_doubt_is_ended_once() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    begin_run(&store, &call).await.forget().await;
    let call = DirectRunCommand { id: JobId::new(&call.key), ..call };
    drop(begin_run(&store, &call).await);
    let call = DirectRunCommand { id: JobId::new(&call.key), ..call };
    tokio::time::sleep(UNDO_TIMEOUT).await;
    begin_run(&store, &call).await.record_response(SECOND, Bytes::new(), None).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!((faults.call_count("begin_direct"), faults.call_count("end_direct")), (3, 3));
}

/// The handler was called and did not end.
#[tokio::test(start_paused = true)]
async fn run_dropped_midway_may_have_run() {
    for may_repeat in [false, true] {
        let (store, faults) = faulty_store();
        let call = DirectRunCommand {
            retry_after_crash: may_repeat,
            ..acquire_for_direct_run(&store).await
        };
        let mut started_run = begin_run(&store, &call).await;
        started_run.mark_started();
        faults.set("bury_direct", BackendFault::Unavailable, 3);
        drop(started_run);
        assert!(store.shutdown(UNDO_TIMEOUT).await);
        if may_repeat {
            assert_retry_runs(&store, &call, "again").await;
            continue;
        }
        assert_eq!(release_and_retry(&store, &call).await, AcquireReply::AlreadyAccepted);
        let job = store.backend().job_view(call.id.clone()).await.unwrap().expect("it is stored");
        let reason = job.reason.as_deref();
        assert_eq!((job.state, reason), (JobState::Dead, Some("stopped, may have run")));
    }
}

#[tokio::test(start_paused = true)]
async fn run_is_renewed_until_it_ends() {
    let (store, faults) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    let started_run = begin_run(&store, &call).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(faults.call_count("renew_direct"), 2);
    tokio::time::sleep(3 * LEASE).await;
    let job = store.backend().job_view(call.id.clone()).await.unwrap().expect("it is there");
    assert_eq!(job.state, JobState::Running);
    started_run.record_response(600 * SECOND, Bytes::new(), None).await;
    let renewed = faults.call_count("renew_direct");
    tokio::time::sleep(LEASE).await;
    assert_eq!(faults.call_count("renew_direct"), renewed);
}

#[tokio::test(start_paused = true)]
async fn concurrent_runs_are_bounded_and_awaited() {
    let (store, _) = faulty_store();
    let call = acquire_for_direct_run(&store).await;
    let first = begin_run(&store, &call).await;
    let one = RunLimits { max_runs: 1, max_detached_time: LEASE };
    let begin_another = async || {
        IdempotentRun::begin(
            &store,
            DirectRunCommand { id: JobId::new(&call.key), ..call.clone() },
            one,
        )
        .await
    };
    assert!(matches!(begin_another().await, Ok(BeginOutcome::AtCapacity)));
    assert!(!store.wait_for_direct_runs(SECOND).await, "it runs");
    crate::store::spawn(async move {
        tokio::time::sleep(SECOND).await;
        first.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    });
    assert!(store.wait_for_direct_runs(2 * SECOND).await);
    assert!(
        matches!(begin_another().await, Ok(BeginOutcome::Taken)),
        "the limit allows another run"
    );
}
