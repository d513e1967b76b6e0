//! A store at work has no findings, whenever one looks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::*;
use crate::store::{
    backend::{
        AcquireCommand, ClaimCommand, ClaimOutcome, EnqueueCommand, JobId, JobPolicy, LeaseRenewal,
        LockMode, LockToken, NodeId, OnFailure, Settlement,
    },
    tests::store_harness::wait_command,
};

const MS: Duration = Duration::from_millis(1);

/// How much is done between two looks at the clock of the test.
struct ConcurrentLoad {
    harness: StoreHarness,
    keys: Vec<Key>,
    is_stopped: AtomicBool,
    number_sequence: AtomicU64,
}

impl ConcurrentLoad {
    /// A number that differs from turn to turn.
    fn next_number(&self) -> usize {
        let turn = self.number_sequence.fetch_add(1, Ordering::SeqCst);
        usize::try_from(turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40).unwrap_or_default()
    }

    fn next_key(&self) -> Key {
        self.keys[self.next_number() % self.keys.len()].clone()
    }

    fn is_running(&self) -> bool {
        !self.is_stopped.load(Ordering::SeqCst)
    }

    /// Requests are deferred, some late, some with a deadline, and some are cancelled, purged and put back.
    async fn run_client(&self) {
        let mut ids: Vec<JobId> = Vec::new();
        while self.is_running() {
            let (key, n) = (self.next_key(), self.next_number());
            let call = enqueue_command(&key);
            let policy = JobPolicy {
                retry_after_crash: n & 1 == 0,
                delay: if n & 6 == 0 { MS * 20 } else { Duration::ZERO },
                deadline: (n & 24 == 0).then_some(MS * 30),
                on_failure: if n & 32 == 0 { OnFailure::Skip } else { OnFailure::Block },
                ..call.policy
            };
            let record = (n & 64 == 0).then(|| (n.to_string().into(), "print".into(), LONG_TIME));
            let id = call.id.clone();
            self.harness
                .enqueue(EnqueueCommand { policy, idempotency_record: record, ..call })
                .await;
            ids.push(id);
            let some = ids[n % ids.len()].clone();
            match n % 7 {
                0 => drop(self.harness.cancel(&some).await),
                1 => drop(self.harness.redrive(&some).await),
                2 => drop(self.harness.purge(&some).await),
                _ => {}
            }
        }
    }

    /// Live requests hold the locks for a moment, and some die with them.
    async fn run_live_requests(&self) {
        while self.is_running() {
            let (key, me) = (self.next_key(), new_token());
            let lease = MS * 40;
            let call = AcquireCommand { lease, max_wait: Some(MS * 50), ..wait_command(&key, &me) };
            self.harness.acquire(call).await;
            tokio::time::sleep(MS).await;
            if !self.next_number().is_multiple_of(5) {
                self.harness.release(&key, &me).await;
            }
        }
    }

    /// A worker: it ends its runs in every way, or dies with them.
    async fn run_worker(&self) {
        let node = NodeId::new();
        while self.is_running() {
            let shards = self.harness.heartbeat(&node, LONG_TIME).await.own_shards;
            let due = self.harness.backend().poll_due(shards, 20).await.unwrap();
            for (key, id) in due.into_iter().flat_map(|due| due.locks) {
                let Some(id) = id else { continue };
                let (me, lease) = (LockToken::new(&node), MS * 40);
                let call = ClaimCommand {
                    key: key.clone(),
                    id: id.clone(),
                    token: me.clone(),
                    lease,
                    retention: LONG_TIME,
                };
                if !matches!(self.harness.claim(call).await, ClaimOutcome::Claimed(_)) {
                    continue;
                }
                let renewal = LeaseRenewal {
                    key: key.clone(),
                    token: me.clone(),
                    mode: LockMode::Exclusive,
                    lease,
                    job: Some(id.clone()),
                };
                self.harness.renew(vec![renewal]).await;
                let verdict = match self.next_number() % 6 {
                    0 => continue,
                    1 => Settlement::Retry { delay: MS * 10, reason: "status 503" },
                    2 => Settlement::Postpone { delay: MS * 5, reason: "busy" },
                    3 => Settlement::Dead { reason: "auth", retention: LONG_TIME },
                    4 => {
                        Settlement::Done { response: "x".into(), status: 200, retention: MS * 300 }
                    }
                    _ => done_settlement(),
                };
                self.harness.settle(settle_command(&key, &id, &me, verdict)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_under_load_has_no_findings() {
    let mut keys = Vec::from(keys_of_one_shard::<4>());
    keys.extend((0..4).map(|n: u32| Key::custom(&format!("other {n}"))));
    let fleet = ConcurrentLoad {
        harness: StoreHarness::redis().await,
        keys,
        is_stopped: AtomicBool::new(false),
        number_sequence: AtomicU64::new(1),
    };
    let fleet = Arc::new(fleet);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let all: [Arc<ConcurrentLoad>; 3] = std::array::from_fn(|_| Arc::clone(&fleet));
        let [one, two, three] = all;
        tasks.spawn(async move { one.run_client().await });
        tasks.spawn(async move { two.run_live_requests().await });
        tasks.spawn(async move { three.run_worker().await });
    }
    let mut looked = 0;
    for _ in 0..5 {
        let report = fleet.harness.run_check(false).await;
        assert!(report.is_clean(), "{report}");
        looked += report.examined;
    }
    // Nor is anything mended that need not be.
    let report = fleet.harness.run_check(true).await;
    assert!(report.is_clean(), "{report}");
    fleet.is_stopped.store(true, Ordering::SeqCst);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert!(looked > 64 * 7 * 5, "{looked}");
}
