//! Batched claims and settlements, with lost replies and dropped callers.

use std::{
    future::Future,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    SECOND, cluster::enqueue_command, lossy_proxy::LossyProxy, server_process::ServerProcess,
};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        GrantAttempt, Store,
        backend::{
            ClaimCommand, ClaimOutcome, EnqueueOutcome, JobId, JobState, LockToken, NextClaim,
            SettleCommand, SettleOutcome, Settlement,
        },
        key_names::KeyNames,
    },
};

const LOCK_COUNT: usize = 40;

pub(super) async fn enqueue_job(store: &Store, key: &Key) -> JobId {
    let call = enqueue_command(key);
    let id = call.id.clone();
    let stored = store.backend().enqueue(call).await.unwrap();
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

/// Enqueues jobs on `LOCK_COUNT` locks. Returns a claim of the first job of each.
async fn claims_of_new_jobs(store: &Store, jobs: usize) -> Vec<ClaimCommand> {
    store.backend().heartbeat(store.node().clone(), 10 * SECOND).await.unwrap();
    let mut claims = Vec::new();
    for n in 0..LOCK_COUNT {
        let key = Key::custom(&n.to_string());
        let id = enqueue_job(store, &key).await;
        for _ in 1..jobs {
            enqueue_job(store, &key).await;
        }
        let token = LockToken::new(store.node());
        claims.push(ClaimCommand { key, id, token, lease: 10 * SECOND, retention: 10 * SECOND });
    }
    claims
}

pub(super) fn settle_command(store: &Store, claim: &ClaimCommand) -> SettleCommand {
    let ClaimCommand { key, id, token, lease, retention } = claim.clone();
    let response = Bytes::from_static(b"answer");
    SettleCommand {
        key,
        id,
        token,
        settlement: Settlement::Done { response, status: 200, retention },
        next_claim: Some(NextClaim { token: LockToken::new(store.node()), lease, retention }),
    }
}

async fn job_state(store: &Store, id: &JobId) -> JobState {
    store.backend().job_view(id.clone()).await.unwrap().expect("it is stored").state
}

#[tokio::test]
async fn failing_claim_does_not_fail_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let claims = claims_of_new_jobs(&store, 1).await;
    let corrupt_key = KeyNames::new("test").holders(&Key::custom("7"));
    server.command(&["DEL", &corrupt_key]).await;
    server.command(&["SET", &corrupt_key, "by hand"]).await;
    let outcomes = join_all(claims.iter().map(|call| store.backend().claim(call.clone()))).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(ClaimOutcome::Claimed(_)) => assert_ne!(n, 7),
            Err(error) => assert_eq!((n, error.kind()), (7, ErrorKind::Protocol)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn lost_replies_of_claims_and_settlements_run_each_job_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    for cuts in [1, 2, 3] {
        let mut claims = claims_of_new_jobs(&store, 2).await;
        proxy.lose_next_replies(cuts);
        for outcome in join_all(claims.iter().map(|call| store.backend().claim(call.clone()))).await
        {
            let Ok(ClaimOutcome::Claimed(run)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(run.attempt, 1);
        }
        for round in 0..2 {
            let calls = Vec::from_iter(claims.iter().map(|claim| settle_command(&store, claim)));
            proxy.lose_next_replies(cuts);
            let settled = join_all(calls.iter().map(|call| store.backend().settle(call.clone())));
            for ((claim, call), settled) in claims.iter_mut().zip(calls).zip(settled.await) {
                match settled.unwrap() {
                    SettleOutcome::Settled(Some(run)) if round == 0 => {
                        assert_eq!(run.attempt, 1);
                        (claim.id, claim.token) = (run.id, call.next_claim.unwrap().token);
                    }
                    settled => assert_eq!((round, settled), (1, SettleOutcome::Settled(None))),
                }
            }
        }
    }
}

/// Dropped after any number of polls, alone and beside others: the job is queued again and has not
/// run.
#[tokio::test]
async fn claim_dropped_at_any_poll_is_undone() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("x");
    store.backend().heartbeat(store.node().clone(), 100 * SECOND).await.unwrap();
    for polls in 0..8 {
        let id = enqueue_job(&store, &key).await;
        let others = claims_of_new_jobs(&store, 1).await;
        let other_store = store.clone();
        let other_calls = crate::store::spawn(async move {
            let claims = others.iter().map(|call| other_store.backend().claim(call.clone()));
            join_all(claims).await;
            let calls = others.iter().map(|claim| settle_command(&other_store, claim));
            join_all(calls.map(|call| other_store.backend().settle(call))).await;
        });
        tokio::task::yield_now().await;
        let lease = 10 * SECOND;
        let mut attempt = GrantAttempt::for_claim(&store, &key, &id);
        let (key, id) = (key.clone(), id.clone());
        let call = ClaimCommand {
            key,
            id: id.clone(),
            token: attempt.token.clone(),
            lease,
            retention: lease,
        };
        let mut dropped =
            Box::pin(async { attempt.send(lease, || store.backend().claim(call)).await });
        poll_repeatedly(&mut dropped, polls).await;
        drop(dropped);
        drop(attempt);
        other_calls.await.unwrap();
        assert!(store.shutdown(25 * SECOND).await);
        let job = store.backend().job_view(id.clone()).await.unwrap().unwrap();
        assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "after {polls} polls");
        store.backend().cancel_waiting_job(id, job.history.started_us, SECOND).await.unwrap();
    }
}

/// Holds also for a claim that is sent with a settlement, whose job is not known to the caller.
#[tokio::test]
async fn next_claim_dropped_at_any_poll_is_undone() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("x");
    store.backend().heartbeat(store.node().clone(), 100 * SECOND).await.unwrap();
    for polls in 0..8 {
        let (first, next) = (enqueue_job(&store, &key).await, enqueue_job(&store, &key).await);
        let (token, lease) = (LockToken::new(store.node()), 10 * SECOND);
        let claim =
            ClaimCommand { key: key.clone(), id: first.clone(), token, lease, retention: lease };
        let claimed = store.backend().claim(claim.clone()).await.unwrap();
        assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
        let mut attempt = GrantAttempt::for_next_claim(&store, &key);
        let token = attempt.token.clone();
        let next_run = Some(NextClaim { token, lease, retention: lease });
        let call = SettleCommand { next_claim: next_run, ..settle_command(&store, &claim) };
        let settle = store.backend().settle(call.clone());
        let mut dropped = Box::pin(async { attempt.send(lease, || settle).await });
        poll_repeatedly(&mut dropped, polls).await;
        drop(dropped);
        drop(attempt);
        assert!(store.shutdown(25 * SECOND).await);
        // The settlement may have run or not. It is sent again.
        let settle = SettleCommand { next_claim: None, ..call };
        assert_eq!(store.backend().settle(settle).await.unwrap(), SettleOutcome::Settled(None));
        assert_eq!(job_state(&store, &first).await, JobState::Done);
        let job = store.backend().job_view(next.clone()).await.unwrap().unwrap();
        assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "after {polls} polls");
        store.backend().cancel_waiting_job(next, job.history.started_us, SECOND).await.unwrap();
    }
}

pub(super) async fn poll_repeatedly<F: Future + Unpin>(future: &mut F, polls: usize) {
    for _ in 0..polls {
        let outcome =
            std::pin::Pin::new(&mut *future).poll(&mut Context::from_waker(Waker::noop()));
        if outcome.is_ready() {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}
