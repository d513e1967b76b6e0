//! Batched runs with large requests: a reply must arrive within the deadline of its call.

use futures_util::future::join_all;

use super::{
    SECOND, batched_runs::settle_command, cluster::enqueue_command, server_process::ServerProcess,
};
use crate::{
    key::Key,
    store::{
        Store,
        backend::{
            ClaimCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobState, LockToken,
            SettleOutcome,
        },
    },
};

/// A batch with more than eight of them is too large.
const ENVELOPE_SIZE: usize = 600 << 10;

const LOCK_COUNT: usize = 24;

async fn enqueue_large_job(store: &Store, key: &Key) -> JobId {
    let call =
        EnqueueCommand { envelope: vec![b'x'; ENVELOPE_SIZE].into(), ..enqueue_command(key) };
    let id = call.id.clone();
    let stored = store.backend().enqueue(call).await.unwrap();
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

fn claim_command(store: &Store, key: &Key, id: &JobId) -> ClaimCommand {
    let (key, id, token) = (key.clone(), id.clone(), LockToken::new(store.node()));
    ClaimCommand { key, id, token, lease: 600 * SECOND, retention: 600 * SECOND }
}

async fn store_with_worker(server: &ServerProcess) -> Store {
    let store = server.store_with_long_timeout().await;
    store.backend().heartbeat(store.node().clone(), 60 * SECOND).await.unwrap();
    store
}

/// Enqueues a large job on each of `LOCK_COUNT` locks. Returns their claims.
async fn enqueue_on_each_lock(store: &Store) -> Vec<ClaimCommand> {
    let mut claims = Vec::new();
    for n in 0..LOCK_COUNT {
        let key = Key::custom(&n.to_string());
        let id = enqueue_large_job(store, &key).await;
        claims.push(claim_command(store, &key, &id));
    }
    claims
}

/// Makes all claims at once. Returns which runs started.
async fn claim_all(store: &Store, claims: &[ClaimCommand]) -> Vec<bool> {
    let claimed = join_all(claims.iter().map(|call| store.backend().claim(call.clone()))).await;
    let started = claimed.into_iter().map(|claimed| match claimed.unwrap() {
        ClaimOutcome::Claimed(run) => {
            assert_eq!(run.envelope.len(), ENVELOPE_SIZE);
            true
        }
        ClaimOutcome::Busy(wait) => {
            assert!(wait < SECOND / 100, "the lock is free: {wait:?}");
            false
        }
        claimed => panic!("{claimed:?}"),
    });
    started.collect()
}

/// A claim whose request does not fit the reply changes nothing, and succeeds in a later batch.
#[tokio::test]
async fn batched_claims_start_only_jobs_that_fit_one_reply() {
    let server = ServerProcess::start().await;
    let store = store_with_worker(&server).await;
    let mut claims = enqueue_on_each_lock(&store).await;
    let mut rounds = 0;
    while !claims.is_empty() {
        let started = claim_all(&store, &claims).await;
        assert!(started.contains(&true), "one goes in any case");
        assert!(
            rounds > 0 || started.contains(&false),
            "{ENVELOPE_SIZE} times {LOCK_COUNT} in a few answers"
        );
        for (claim, started) in claims.iter().zip(&started) {
            let job = store.backend().job_view(claim.id.clone()).await.unwrap().unwrap();
            let (state, attempts) =
                if *started { (JobState::Running, 1) } else { (JobState::Queued, 0) };
            assert_eq!((job.state, job.attempts), (state, attempts));
        }
        let mut started = started.into_iter();
        claims.retain(|_| !started.next().unwrap());
        rounds += 1;
    }
}

/// The size of a job is part of its record.
#[tokio::test]
async fn batched_claim_of_job_without_record_reports_ended() {
    let server = ServerProcess::start().await;
    let store = store_with_worker(&server).await;
    let claims = enqueue_on_each_lock(&store).await;
    for claim in claims.iter().skip(2).step_by(3) {
        let keys: Vec<String> = server.query(&["KEYS", &format!("*:j:{}", claim.id)]).await;
        assert_eq!(server.query::<u64>(&["DEL", &keys[0]]).await, 1);
    }
    let outcomes = join_all(claims.iter().map(|call| store.backend().claim(call.clone()))).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome.unwrap() {
            ClaimOutcome::Claimed(_) | ClaimOutcome::Busy(_) => assert_ne!(n % 3, 2),
            outcome => {
                assert!(
                    n % 3 == 2 && matches!(outcome, ClaimOutcome::Ended(_)),
                    "{n}: {outcome:?}"
                );
            }
        }
    }
}

/// Each settlement counts. A job whose run is not started with it is offered the lock.
#[tokio::test]
async fn batched_settlements_start_only_jobs_that_fit_one_reply() {
    let server = ServerProcess::start().await;
    let store = store_with_worker(&server).await;
    let (mut firsts, mut nexts) = (Vec::new(), Vec::new());
    for n in 0..LOCK_COUNT {
        let key = Key::custom(&n.to_string());
        let first = enqueue_large_job(&store, &key).await;
        nexts.push(enqueue_large_job(&store, &key).await);
        let claim = claim_command(&store, &key, &first);
        assert_eq!(claim_all(&store, std::slice::from_ref(&claim)).await, [true]);
        firsts.push(claim);
    }
    let calls = firsts.iter().map(|claim| store.backend().settle(settle_command(&store, claim)));
    let settled = join_all(calls).await;
    let mut unstarted = 0;
    for ((first, next), settled) in firsts.iter().zip(&nexts).zip(settled) {
        match settled.unwrap() {
            SettleOutcome::Settled(Some(run)) => {
                assert_eq!((&run.id, run.envelope.len()), (next, ENVELOPE_SIZE));
            }
            SettleOutcome::Settled(None) => {
                unstarted += 1;
                let claim = claim_command(&store, &first.key, next);
                assert_eq!(claim_all(&store, &[claim]).await, [true], "the lock is free");
            }
            SettleOutcome::RunLost => panic!("{:?} was lost", first.id),
        }
        let job = store.backend().job_view(first.id.clone()).await.unwrap().unwrap();
        assert_eq!(job.state, JobState::Done);
    }
    assert!(unstarted > 0, "{ENVELOPE_SIZE} times {LOCK_COUNT} in a few answers");
}
