//! Runs that go together and whose requests are large: an answer has to come within its call's deadline.

use futures_util::future::join_all;

use super::{SECOND, cluster::deferred, runs::settlement, server::Server};
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

/// More than eight of them, which go together, are too many.
const LARGE: usize = 600 << 10;

const LINES: usize = 24;

async fn store_large(store: &Store, key: &Key) -> JobId {
    let call = EnqueueCommand { envelope: vec![b'x'; LARGE].into(), ..deferred(key) };
    let id = call.id.clone();
    let stored = store.backend().enqueue(call).await.unwrap();
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

fn claim(store: &Store, key: &Key, id: &JobId) -> ClaimCommand {
    let (key, id, me) = (key.clone(), id.clone(), LockToken::new(store.node()));
    ClaimCommand { key, id, token: me, lease: 600 * SECOND, retention: 600 * SECOND }
}

/// A store with a worker.
async fn working(server: &Server) -> Store {
    let store = server.patient_store().await;
    store.backend().heartbeat(store.node().clone(), 60 * SECOND).await.unwrap();
    store
}

/// As many lines with a large request each; their claims.
async fn lines(store: &Store) -> Vec<ClaimCommand> {
    let mut claims = Vec::new();
    for n in 0..LINES {
        let key = Key::custom(&n.to_string());
        let id = store_large(store, &key).await;
        claims.push(claim(store, &key, &id));
    }
    claims
}

/// All of them claimed at once; which began.
async fn claimed(store: &Store, claims: &[ClaimCommand]) -> Vec<bool> {
    let claimed = join_all(claims.iter().map(|call| store.backend().claim(call.clone()))).await;
    let began = claimed.into_iter().map(|claimed| match claimed.unwrap() {
        ClaimOutcome::Claimed(run) => {
            assert_eq!(run.envelope.len(), LARGE);
            true
        }
        ClaimOutcome::Busy(wait) => {
            assert!(wait < SECOND / 100, "nobody has it: {wait:?}");
            false
        }
        claimed => panic!("{claimed:?}"),
    });
    began.collect()
}

/// What has no room in one answer is untouched, and goes with another one.
#[tokio::test]
async fn claims_of_large_requests_do_not_all_begin_at_once() {
    let server = Server::start().await;
    let store = working(&server).await;
    let mut claims = lines(&store).await;
    let mut rounds = 0;
    while !claims.is_empty() {
        let began = claimed(&store, &claims).await;
        assert!(began.contains(&true), "one goes in any case");
        assert!(rounds > 0 || began.contains(&false), "{LARGE} times {LINES} in a few answers");
        for (claim, began) in claims.iter().zip(&began) {
            let job = store.backend().job_view(claim.id.clone()).await.unwrap().unwrap();
            let (state, attempts) =
                if *began { (JobState::Running, 1) } else { (JobState::Queued, 0) };
            assert_eq!((job.state, job.attempts), (state, attempts));
        }
        let mut began = began.into_iter();
        claims.retain(|_| !began.next().unwrap());
        rounds += 1;
    }
}

/// What a job weighs is among its facts.
#[tokio::test]
async fn a_claim_beside_others_of_a_job_whose_facts_are_gone_is_told_so() {
    let server = Server::start().await;
    let store = working(&server).await;
    let claims = lines(&store).await;
    for claim in claims.iter().skip(2).step_by(3) {
        let keys: Vec<String> = server.ask(&["KEYS", &format!("*:j:{}", claim.id)]).await;
        assert_eq!(server.ask::<u64>(&["DEL", &keys[0]]).await, 1);
    }
    let told = join_all(claims.iter().map(|call| store.backend().claim(call.clone()))).await;
    for (n, told) in told.into_iter().enumerate() {
        match told.unwrap() {
            ClaimOutcome::Claimed(_) | ClaimOutcome::Busy(_) => assert_ne!(n % 3, 2),
            told => assert!(n % 3 == 2 && matches!(told, ClaimOutcome::Ended(_)), "{n}: {told:?}"),
        }
    }
}

/// Each verdict stands; a job that is not begun along is offered the lock.
#[tokio::test]
async fn settlements_do_not_all_begin_a_large_request() {
    let server = Server::start().await;
    let store = working(&server).await;
    let (mut firsts, mut nexts) = (Vec::new(), Vec::new());
    for n in 0..LINES {
        let key = Key::custom(&n.to_string());
        let first = store_large(&store, &key).await;
        nexts.push(store_large(&store, &key).await);
        let claim = claim(&store, &key, &first);
        assert_eq!(claimed(&store, std::slice::from_ref(&claim)).await, [true]);
        firsts.push(claim);
    }
    let calls = firsts.iter().map(|claim| store.backend().settle(settlement(&store, claim)));
    let settled = join_all(calls).await;
    let mut left = 0;
    for ((first, next), settled) in firsts.iter().zip(&nexts).zip(settled) {
        match settled.unwrap() {
            SettleOutcome::Settled(Some(run)) => {
                assert_eq!((&run.id, run.envelope.len()), (next, LARGE));
            }
            SettleOutcome::Settled(None) => {
                left += 1;
                let claim = claim(&store, &first.key, next);
                assert_eq!(claimed(&store, &[claim]).await, [true], "nobody else has it");
            }
            SettleOutcome::RunLost => panic!("{:?} was ours", first.id),
        }
        let job = store.backend().job_view(first.id.clone()).await.unwrap().unwrap();
        assert_eq!(job.state, JobState::Done);
    }
    assert!(left > 0, "{LARGE} times {LINES} in a few answers");
}
