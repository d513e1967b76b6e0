//! Records whose calls come late, or whose ends meet a store that is away.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{BeginOutcome, IdempotentRun, RunLimits};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        AcquireCommand, AcquireReply, DirectRunCommand, Fault, Faults, JobId, JobState, LockMode,
        LockToken, StorageLimits, Store, faulty,
    },
};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

const LIMITS: RunLimits = RunLimits { max_runs: 8, max_detached_time: LEASE };

/// Beyond the longest pause of an undo that is said again, far within a lease.
const SOON: Duration = Duration::from_secs(4);

fn ask(store: &Store, record: Option<Arc<str>>) -> AcquireCommand {
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

/// A request that has its lock, and is about to begin.
pub(in crate::gate) async fn locked(store: &Store) -> DirectRunCommand {
    let call = ask(store, Some("idem".into()));
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

pub(in crate::gate) async fn begun(store: &Store, call: &DirectRunCommand) -> IdempotentRun {
    match IdempotentRun::begin(store, call.clone(), LIMITS).await.unwrap() {
        BeginOutcome::Started(begun) => begun,
        BeginOutcome::Taken
        | BeginOutcome::LockLost
        | BeginOutcome::AtCapacity
        | BeginOutcome::TooManyKeys(_) => {
            panic!("it is the first, and has its lock")
        }
    }
}

/// The lock is given back, and a retry under the same key is asked for.
async fn retried(store: &Store, call: &DirectRunCommand) -> AcquireReply {
    let (key, me) = (call.key.clone(), call.token.clone());
    store.backend().release(key, me, LockMode::Exclusive).await.unwrap();
    store.backend().acquire(ask(store, Some("idem".into()))).await.unwrap()
}

async fn a_retry_runs(store: &Store, call: &DirectRunCommand, how: &str) {
    let told = retried(store, call).await;
    assert!(matches!(told, AcquireReply::Granted { .. }), "{how}: {told:?}");
    assert_eq!(store.backend().job_view(call.id.clone()).await.unwrap(), None, "{how}");
}

async fn begin_is_late(store: &Store, faults: &Faults, call: &DirectRunCommand) {
    faults.set("begin_direct", Fault::Stray(SECOND), 1);
    let error =
        IdempotentRun::begin(store, call.clone(), LIMITS).await.err().expect("no answer comes");
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_behind_its_undo_is_undone() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    begin_is_late(&store, &faults, &call).await;
    tokio::time::sleep(SOON).await;
    a_retry_runs(&store, &call, "the store answers").await;

    let (store, faults) = faulty();
    let call = locked(&store).await;
    faults.set("end_direct", Fault::Away, 6);
    begin_is_late(&store, &faults, &call).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(faults.left("end_direct"), 0);
    a_retry_runs(&store, &call, "the store is away at first").await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_comes_behind_its_undo_is_undone() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    faults.set("begin_direct", Fault::Copy(SECOND), 1);
    begun(&store, &call).await.forget().await;
    tokio::time::sleep(SOON).await;
    a_retry_runs(&store, &call, "copied").await;
}

/// A shutdown waits until what is known to be there is undone, and that is; what comes later is undone all the same.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_copy_of_what_has_ended() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    faults.set("begin_direct", Fault::Copy(SECOND), 1);
    begun(&store, &call).await.forget().await;
    shuts_down_at_once(&store).await;
    tokio::time::sleep(SOON).await;
    a_retry_runs(&store, &call, "copied").await;
}

/// Nothing of it is there.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_copy_of_what_has_not_begun() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    let (key, me) = (call.key.clone(), call.token.clone());
    store.backend().release(key, me, LockMode::Exclusive).await.unwrap();
    faults.set("begin_direct", Fault::Copy(SECOND), 1);
    let begin = IdempotentRun::begin(&store, call, LIMITS).await;
    assert!(matches!(begin, Ok(BeginOutcome::LockLost)), "it has no lock");
    shuts_down_at_once(&store).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(faults.seen("begin_direct"), 1);
    assert!(faults.seen("end_direct") > 0, "what may come is undone");
}

async fn shuts_down_at_once(store: &Store) {
    let asked = Instant::now();
    assert!(store.shutdown(SOON).await, "it waits for what may never come");
    assert!(asked.elapsed() < SECOND / 2, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_end_reaches_a_store_that_was_away() {
    for how in ["forgotten", "dropped"] {
        let (store, faults) = faulty();
        let call = locked(&store).await;
        let begun = begun(&store, &call).await;
        faults.set("end_direct", Fault::Away, 6);
        match how {
            "forgotten" => begun.forget().await,
            _ => drop(begun),
        }
        assert!(store.shutdown(SOON).await, "it waits for that");
        assert_eq!(faults.left("end_direct"), 0, "{how}");
        a_retry_runs(&store, &call, how).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_it_was_answered_reaches_a_store_that_was_away() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    faults.set("end_direct", Fault::Away, 6);
    begun.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    assert!(store.shutdown(SOON).await, "it waits for that");
    assert_eq!(retried(&store, &call).await, AcquireReply::AlreadyAccepted);
    let job = store.backend().job_view(call.id.clone()).await.unwrap().expect("it is kept");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}

/// No more calls than needed: nothing is in doubt.
#[tokio::test(start_paused = true)]
async fn where_nothing_is_in_doubt_it_is_ended_once() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    begun(&store, &call).await.forget().await;
    let call = DirectRunCommand { id: JobId::new(&call.key), ..call };
    drop(begun(&store, &call).await);
    let call = DirectRunCommand { id: JobId::new(&call.key), ..call };
    tokio::time::sleep(SOON).await;
    begun(&store, &call).await.record_response(SECOND, Bytes::new(), None).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!((faults.seen("begin_direct"), faults.seen("end_direct")), (3, 3));
}

/// The handler was called, and has not come to its end.
#[tokio::test(start_paused = true)]
async fn what_was_dropped_in_the_middle_may_have_run() {
    for again in [false, true] {
        let (store, faults) = faulty();
        let call = DirectRunCommand { retry_after_crash: again, ..locked(&store).await };
        let mut begun = begun(&store, &call).await;
        begun.mark_started();
        faults.set("bury_direct", Fault::Away, 3);
        drop(begun);
        assert!(store.shutdown(SOON).await);
        if again {
            a_retry_runs(&store, &call, "again").await;
            continue;
        }
        assert_eq!(retried(&store, &call).await, AcquireReply::AlreadyAccepted);
        let job = store.backend().job_view(call.id.clone()).await.unwrap().expect("it is kept");
        let reason = job.reason.as_deref();
        assert_eq!((job.state, reason), (JobState::Dead, Some("stopped, may have run")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_renewed_for_as_long_as_it_lasts() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(faults.seen("renew_direct"), 2);
    tokio::time::sleep(3 * LEASE).await;
    let job = store.backend().job_view(call.id.clone()).await.unwrap().expect("it is there");
    assert_eq!(job.state, JobState::Running);
    begun.record_response(600 * SECOND, Bytes::new(), None).await;
    let renewed = faults.seen("renew_direct");
    tokio::time::sleep(LEASE).await;
    assert_eq!(faults.seen("renew_direct"), renewed);
}

#[tokio::test(start_paused = true)]
async fn runs_are_bounded_and_waited_for() {
    let (store, _) = faulty();
    let call = locked(&store).await;
    let first = begun(&store, &call).await;
    let one = RunLimits { max_runs: 1, max_detached_time: LEASE };
    let full = async || {
        IdempotentRun::begin(
            &store,
            DirectRunCommand { id: JobId::new(&call.key), ..call.clone() },
            one,
        )
        .await
    };
    assert!(matches!(full().await, Ok(BeginOutcome::AtCapacity)));
    assert!(!store.wait_for_direct_runs(SECOND).await, "it runs");
    crate::store::spawn(async move {
        tokio::time::sleep(SECOND).await;
        first.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    });
    assert!(store.wait_for_direct_runs(2 * SECOND).await);
    assert!(matches!(full().await, Ok(BeginOutcome::Taken)), "there is room");
}
