//! Requests that run at once under an `Idempotency-Key`, while the server stands still.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    SECOND, cluster::retry_while_unavailable, server_process::ServerProcess, wait_until_usable,
};
use crate::{
    error::ErrorKind,
    gate::{BeginOutcome, IdempotentRun, RunLimits},
    key::Key,
    store::{
        JobState, Store,
        backend::{
            AcquireCommand, AcquireReply, DirectRunCommand, JobId, LockMode, LockToken,
            StorageLimits,
        },
    },
};

const LEASE: Duration = Duration::from_secs(60);

const LIMITS: RunLimits = RunLimits { max_runs: 8, max_detached_time: LEASE };

fn acquire_command(store: &Store) -> AcquireCommand {
    let (key, me, record) = (Key::custom("x"), LockToken::new(store.node()), Some("idem".into()));
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
pub(super) async fn acquire_for_run(store: &Store) -> DirectRunCommand {
    let call = acquire_command(store);
    let answer =
        retry_while_unavailable(async || store.backend().acquire(call.clone()).await).await;
    assert!(matches!(answer, AcquireReply::Granted { .. }), "{answer:?}");
    let AcquireCommand { key, token: me, .. } = call;
    let (id, record, life) = (JobId::new(&key), "idem".into(), 600 * SECOND);
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

async fn begin_run(store: &Store, call: &DirectRunCommand) -> IdempotentRun {
    match IdempotentRun::begin(store, call.clone(), LIMITS).await.expect("it is there") {
        BeginOutcome::Started(begun) => begun,
        BeginOutcome::Taken
        | BeginOutcome::LockLost
        | BeginOutcome::AtCapacity
        | BeginOutcome::TooManyKeys(_) => {
            panic!("it is the first, and has its lock")
        }
    }
}

/// So many calls without an answer that nothing is sent any more.
async fn open_breaker(store: &Store) {
    let locks = (0..8).map(|n| store.lock(format!("{n}")).acquire());
    for outcome in join_all(locks.map(IntoFuture::into_future)).await {
        assert!(outcome.is_err(), "the server stands still");
    }
}

/// It answers again, and what became of a request whose lock is given back is told to its retry.
async fn retry_until_reply(
    server: &ServerProcess,
    store: &Store,
    call: &DirectRunCommand,
    wanted: impl Fn(&AcquireReply) -> bool,
) {
    server.resume();
    wait_until_usable(store).await;
    let other = server.store_with_long_timeout().await;
    let (key, me) = (call.key.clone(), call.token.clone());
    other.backend().release(key, me, LockMode::Exclusive).await.expect("it is there");
    let since = Instant::now();
    loop {
        let told = other.backend().acquire(acquire_command(&other)).await.expect("it is there");
        if wanted(&told) {
            return;
        }
        assert!(since.elapsed() < 20 * SECOND, "{told:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_granted(told: &AcquireReply) -> bool {
    matches!(told, AcquireReply::Granted { .. })
}

/// The call lies in a connection that is left, and is run when the server wakes.
#[tokio::test]
async fn begin_without_reply_is_forgotten_once_server_answers() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let call = acquire_for_run(&store).await;
    server.freeze();
    let begin = IdempotentRun::begin(&store, call.clone(), LIMITS);
    let (begin, ()) = tokio::join!(begin, open_breaker(&store));
    let error = begin.err().expect("the server stands still");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    retry_until_reply(&server, &store, &call, is_granted).await;
}

#[tokio::test]
async fn run_forgotten_during_outage_may_run_again() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let call = acquire_for_run(&store).await;
    let begun = begin_run(&store, &call).await;
    server.freeze();
    open_breaker(&store).await;
    begun.forget().await;
    retry_until_reply(&server, &store, &call, is_granted).await;
}

#[tokio::test]
async fn response_recorded_during_outage_is_kept_for_retry() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let call = acquire_for_run(&store).await;
    let begun = begin_run(&store, &call).await;
    server.freeze();
    open_breaker(&store).await;
    begun.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    retry_until_reply(&server, &store, &call, |told| *told == AcquireReply::AlreadyAccepted).await;
    assert!(store.shutdown(20 * SECOND).await, "it waits for that");
    let job =
        store.backend().job_view(call.id.clone()).await.expect("it is there").expect("it is kept");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}
