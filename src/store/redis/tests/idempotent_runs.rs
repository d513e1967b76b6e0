//! Direct runs under an `Idempotency-Key` while the server is frozen.

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
    let (key, token, record_name) =
        (Key::custom("x"), LockToken::new(store.node()), Some("idem".into()));
    AcquireCommand {
        key,
        token,
        mode: LockMode::Exclusive,
        lease: LEASE,
        max_wait: None,
        resume_seq: 0,
        record_name,
    }
}

/// Acquires the lock of a direct run that is about to begin.
pub(super) async fn acquire_for_run(store: &Store) -> DirectRunCommand {
    let call = acquire_command(store);
    let reply = retry_while_unavailable(async || store.backend().acquire(call.clone()).await).await;
    assert!(matches!(reply, AcquireReply::Granted { .. }), "{reply:?}");
    let AcquireCommand { key, token, .. } = call;
    let (id, record_name, retention) = (JobId::new(&key), "idem".into(), 600 * SECOND);
    let (mode, owner, fingerprint) = (LockMode::Exclusive, String::new(), None);
    DirectRunCommand {
        key,
        token,
        mode,
        record_name,
        id,
        owner,
        retention,
        lease: LEASE,
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint,
    }
}

async fn begin_run(store: &Store, call: &DirectRunCommand) -> IdempotentRun {
    match IdempotentRun::begin(store, call.clone(), LIMITS).await.expect("it is there") {
        BeginOutcome::Started(run) => run,
        BeginOutcome::Taken
        | BeginOutcome::LockLost
        | BeginOutcome::AtCapacity
        | BeginOutcome::TooManyKeys(_) => {
            panic!("it is the first, and has its lock")
        }
    }
}

/// Makes calls without an answer until the breaker is open.
async fn open_breaker(store: &Store) {
    let locks = (0..8).map(|n| store.lock(format!("{n}")).acquire());
    for outcome in join_all(locks.map(IntoFuture::into_future)).await {
        assert!(outcome.is_err(), "the server is stopped");
    }
}

/// Resumes the server, releases the lock, and waits until a retry of the request gets the wanted
/// reply.
async fn retry_until_reply(
    server: &ServerProcess,
    store: &Store,
    call: &DirectRunCommand,
    is_wanted: impl Fn(&AcquireReply) -> bool,
) {
    server.resume();
    wait_until_usable(store).await;
    let other = server.store_with_long_timeout().await;
    let (key, token) = (call.key.clone(), call.token.clone());
    other.backend().release(key, token, LockMode::Exclusive).await.expect("it is there");
    let started = Instant::now();
    loop {
        let reply = other.backend().acquire(acquire_command(&other)).await.expect("it is there");
        if is_wanted(&reply) {
            return;
        }
        assert!(started.elapsed() < 20 * SECOND, "{reply:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_granted(reply: &AcquireReply) -> bool {
    matches!(reply, AcquireReply::Granted { .. })
}

/// The call lies in an abandoned connection, and runs when the server resumes.
#[tokio::test]
async fn begin_without_reply_is_forgotten_once_server_answers() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let call = acquire_for_run(&store).await;
    server.freeze();
    let begin = IdempotentRun::begin(&store, call.clone(), LIMITS);
    let (begin, ()) = tokio::join!(begin, open_breaker(&store));
    let error = begin.err().expect("the server is stopped");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    retry_until_reply(&server, &store, &call, is_granted).await;
}

#[tokio::test]
async fn run_forgotten_during_outage_may_run_again() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let call = acquire_for_run(&store).await;
    let run = begin_run(&store, &call).await;
    server.freeze();
    open_breaker(&store).await;
    run.forget().await;
    retry_until_reply(&server, &store, &call, is_granted).await;
}

#[tokio::test]
async fn response_recorded_during_outage_is_kept_for_retry() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let call = acquire_for_run(&store).await;
    let run = begin_run(&store, &call).await;
    server.freeze();
    open_breaker(&store).await;
    run.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    retry_until_reply(&server, &store, &call, |reply| *reply == AcquireReply::AlreadyAccepted)
        .await;
    assert!(store.shutdown(20 * SECOND).await, "it waits for that");
    let job = store
        .backend()
        .job_view(call.id.clone())
        .await
        .expect("it is there")
        .expect("it is stored");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}
