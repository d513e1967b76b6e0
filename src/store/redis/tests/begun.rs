//! Requests that run at once under an `Idempotency-Key`, while the server stands still.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{SECOND, cluster::insist, server::Server, usable};
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

fn ask(store: &Store) -> AcquireCommand {
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
pub(super) async fn locked(store: &Store) -> DirectRunCommand {
    let call = ask(store);
    let answer = insist(async || store.backend().acquire(call.clone()).await).await;
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

async fn begun(store: &Store, call: &DirectRunCommand) -> IdempotentRun {
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
async fn opens_the_breaker(store: &Store) {
    let locks = (0..8).map(|n| store.lock(format!("{n}")).acquire());
    for outcome in join_all(locks.map(IntoFuture::into_future)).await {
        assert!(outcome.is_err(), "the server stands still");
    }
}

/// It answers again, and what became of a request whose lock is given back is told to its retry.
async fn retried(
    server: &Server,
    store: &Store,
    call: &DirectRunCommand,
    wanted: impl Fn(&AcquireReply) -> bool,
) {
    server.thaw();
    usable(store).await;
    let other = server.patient_store().await;
    let (key, me) = (call.key.clone(), call.token.clone());
    other.backend().release(key, me, LockMode::Exclusive).await.expect("it is there");
    let since = Instant::now();
    loop {
        let told = other.backend().acquire(ask(&other)).await.expect("it is there");
        if wanted(&told) {
            return;
        }
        assert!(since.elapsed() < 20 * SECOND, "{told:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn runs(told: &AcquireReply) -> bool {
    matches!(told, AcquireReply::Granted { .. })
}

/// The call lies in a connection that is left, and is run when the server wakes.
#[tokio::test]
async fn one_that_got_no_answer_is_forgotten_when_it_has_run() {
    let server = Server::start().await;
    let store = server.store().await;
    let call = locked(&store).await;
    server.freeze();
    let begin = IdempotentRun::begin(&store, call.clone(), LIMITS);
    let (begin, ()) = tokio::join!(begin, opens_the_breaker(&store));
    let error = begin.err().expect("the server stands still");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    retried(&server, &store, &call, runs).await;
}

#[tokio::test]
async fn one_that_failed_meanwhile_is_forgotten() {
    let server = Server::start().await;
    let store = server.store().await;
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    server.freeze();
    opens_the_breaker(&store).await;
    begun.forget().await;
    retried(&server, &store, &call, runs).await;
}

#[tokio::test]
async fn what_one_was_answered_meanwhile_is_kept() {
    let server = Server::start().await;
    let store = server.store().await;
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    server.freeze();
    opens_the_breaker(&store).await;
    begun.record_response(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    retried(&server, &store, &call, |told| *told == AcquireReply::AlreadyAccepted).await;
    assert!(store.shutdown(20 * SECOND).await, "it waits for that");
    let job =
        store.backend().job_view(call.id.clone()).await.expect("it is there").expect("it is kept");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}
