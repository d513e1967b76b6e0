//! A check of a store under load must have no findings at any time.

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

/// Clients and workers that share a store while it is checked.
struct ConcurrentLoad {
    harness: StoreHarness,
    keys: Vec<Key>,
    is_stopped: AtomicBool,
    number_sequence: AtomicU64,
}

impl ConcurrentLoad {
    /// Returns a different number on each call.
    fn next_number(&self) -> usize {
        let count = self.number_sequence.fetch_add(1, Ordering::SeqCst);
        usize::try_from(count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40).unwrap_or_default()
    }

    fn next_key(&self) -> Key {
        self.keys[self.next_number() % self.keys.len()].clone()
    }

    fn is_running(&self) -> bool {
        !self.is_stopped.load(Ordering::SeqCst)
    }

    /// Enqueues jobs, some delayed, some with a deadline, and cancels, purges and redrives some.
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
            let chosen = ids[n % ids.len()].clone();
            match n % 7 {
                0 => drop(self.harness.cancel(&chosen).await),
                1 => drop(self.harness.redrive(&chosen).await),
                2 => drop(self.harness.purge(&chosen).await),
                _ => {}
            }
        }
    }

    /// Holds the locks for short times; some leases expire instead of being released.
    async fn run_live_requests(&self) {
        while self.is_running() {
            let (key, token) = (self.next_key(), new_token());
            let lease = MS * 40;
            let call =
                AcquireCommand { lease, max_wait: Some(MS * 50), ..wait_command(&key, &token) };
            self.harness.acquire(call).await;
            tokio::time::sleep(MS).await;
            if !self.next_number().is_multiple_of(5) {
                self.harness.release(&key, &token).await;
            }
        }
    }

    /// Worker that settles its runs in every way, or lets their leases expire.
    async fn run_worker(&self) {
        let node = NodeId::new();
        while self.is_running() {
            let shards = self.harness.heartbeat(&node, LONG_TIME).await.own_shards;
            let due = self.harness.backend().poll_due(shards, 20).await.unwrap();
            for (key, id) in due.into_iter().flat_map(|due| due.locks) {
                let Some(id) = id else { continue };
                let (token, lease) = (LockToken::new(&node), MS * 40);
                let call = ClaimCommand {
                    key: key.clone(),
                    id: id.clone(),
                    token: token.clone(),
                    lease,
                    retention: LONG_TIME,
                };
                if !matches!(self.harness.claim(call).await, ClaimOutcome::Claimed(_)) {
                    continue;
                }
                let renewal = LeaseRenewal {
                    key: key.clone(),
                    token: token.clone(),
                    mode: LockMode::Exclusive,
                    lease,
                    job: Some(id.clone()),
                };
                self.harness.renew(vec![renewal]).await;
                let settlement = match self.next_number() % 6 {
                    0 => continue,
                    1 => Settlement::Retry { delay: MS * 10, reason: "status 503" },
                    2 => Settlement::Postpone { delay: MS * 5, reason: "busy" },
                    3 => Settlement::Dead { reason: "auth", retention: LONG_TIME },
                    4 => {
                        Settlement::Done { response: "x".into(), status: 200, retention: MS * 300 }
                    }
                    _ => done_settlement(),
                };
                self.harness.settle(settle_command(&key, &id, &token, settlement)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_under_load_has_no_findings() {
    let mut keys = Vec::from(keys_of_one_shard::<4>());
    keys.extend((0..4).map(|n: u32| Key::custom(&format!("other {n}"))));
    let load = ConcurrentLoad {
        harness: StoreHarness::redis().await,
        keys,
        is_stopped: AtomicBool::new(false),
        number_sequence: AtomicU64::new(1),
    };
    let load = Arc::new(load);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let loads: [Arc<ConcurrentLoad>; 3] = std::array::from_fn(|_| Arc::clone(&load));
        let [one, two, three] = loads;
        tasks.spawn(async move { one.run_client().await });
        tasks.spawn(async move { two.run_live_requests().await });
        tasks.spawn(async move { three.run_worker().await });
    }
    let mut examined = 0;
    for _ in 0..5 {
        let report = load.harness.run_check(false).await;
        assert!(report.is_clean(), "{report}");
        examined += report.examined;
    }
    // A repair changes nothing either.
    let report = load.harness.run_check(true).await;
    assert!(report.is_clean(), "{report}");
    load.is_stopped.store(true, Ordering::SeqCst);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert!(examined > 64 * 7 * 5, "{examined}");
}
