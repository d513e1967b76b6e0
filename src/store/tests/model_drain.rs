//! Drain at the end of a random sequence: there are no new requests, and every message is lost. The
//! live clients continue by their timers alone, as real clients do. Each waiter must be served,
//! each job must end, and no data may remain.

use std::{collections::BTreeMap, time::Duration};

use super::{
    client_operation::seconds_and_half,
    simulated_clients::{SimulatedClients, SimulatedWaiter},
    store_call::{StoreCall, StoreReply},
    store_harness::{
        LONG_TIME, StoreHarness, claim_command, done_settlement, fixed_window_item, grouped_charge,
        settle_command,
    },
    store_model::StoreModel,
};
use crate::{
    Key,
    store::backend::{
        AcquireReply, ClaimCommand, ClaimOutcome, LockMode, LockToken, NodeId, OFFER_TIMEOUT,
        SettleOutcome,
    },
};

/// Time in which live waiters are served: the lease of a dead holder expires, and each dead queue
/// entry and each job without a worker costs one offer timeout.
const WAITER_DEADLINE: Duration = Duration::from_secs(12);

/// Time in which all jobs have run after the shards of dead workers are free: as above, plus the
/// backoffs.
const JOB_DEADLINE: Duration = Duration::from_secs(18);

/// Longest time between two polls, as in the queue task.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Lease and interval of the heartbeats, as of a worker.
const HEARTBEAT_LEASE: Duration = Duration::from_secs(15);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Time for which every lock is held.
const HOLD_TIME: Duration = Duration::from_millis(70);

/// Next step of a client or of the worker.
enum DrainStep {
    PollLock(usize),
    Release(Key, LockToken, LockMode),
    Heartbeat,
    PollDue(u16),
    ClaimHead(Key),
    Settle(ClaimCommand),
}

pub(super) struct ModelDrain<'a> {
    harness: &'a StoreHarness,
    clients: &'a mut SimulatedClients,
    model: &'a mut StoreModel,
    worker: NodeId,
    own_shards: Vec<u16>,
    schedule: BTreeMap<(Duration, usize), DrainStep>,
    scheduled_count: usize,
    now: Duration,
}

/// Drains the store. `crashed` has an entry per waiter: true if its process has died.
pub(super) async fn drain_model(
    rig: &StoreHarness,
    clients: &mut SimulatedClients,
    model: &mut StoreModel,
    crashed: &[bool],
) {
    let worker = NodeId::new();
    let mut drain = ModelDrain {
        harness: rig,
        clients,
        model,
        worker,
        own_shards: Vec::new(),
        schedule: BTreeMap::new(),
        scheduled_count: 0,
        now: Duration::ZERO,
    };
    drain.call_and_check(StoreCall::SetPaused(false)).await;
    drain.schedule_first_steps(crashed);
    let watch_ends = drain.time_until_shards_are_free();
    loop {
        let (live, jobs) = drain.pending_counts();
        match (live, jobs) {
            (0, 0) => break,
            (0, _) => assert!(drain.now < watch_ends + JOB_DEADLINE, "{jobs} jobs are not run"),
            _ => assert!(drain.now < WAITER_DEADLINE, "{live} waiters are not served"),
        }
        drain.run_next_step().await;
    }
    drain.check_nothing_remains().await;
}

impl ModelDrain<'_> {
    fn schedule_first_steps(&mut self, crashed: &[bool]) {
        self.schedule_after(Duration::ZERO, DrainStep::Heartbeat);
        for (waiter_index, crashed) in crashed.iter().enumerate() {
            let waiter = self.clients.waiters[waiter_index].clone();
            let mode = waiter.held_mode();
            let SimulatedWaiter { key, token, .. } = waiter;
            let lock = &self.model.locks[&key];
            if *crashed {
                continue;
            }
            if lock.is_held_by(&token) {
                self.schedule_after(HOLD_TIME, DrainStep::Release(key, token, mode));
            } else if lock.is_waiting(&token) {
                self.schedule_after(POLL_INTERVAL, DrainStep::PollLock(waiter_index));
            }
        }
    }

    fn schedule_after(&mut self, after: Duration, step: DrainStep) {
        self.scheduled_count += 1;
        self.schedule.insert((self.now + after, self.scheduled_count), step);
    }

    /// Returns the number of live waiters and of pending jobs.
    fn pending_counts(&self) -> (usize, usize) {
        let is_client_step =
            |step: &&DrainStep| matches!(step, DrainStep::PollLock(_) | DrainStep::Release(..));
        let jobs = self.model.locks.values().map(|lock| lock.pending_jobs().count());
        (self.schedule.values().filter(is_client_step).count(), jobs.sum())
    }

    /// Returns the time until the last shard that a dead worker watches is free.
    fn time_until_shards_are_free(&self) -> Duration {
        let locks = self.model.locks.values().map(|lock| lock.watched_until);
        let worker_expiries = self.model.worker_expiries.values().copied();
        let last_expiry = locks.chain(worker_expiries).max().unwrap_or(0);
        Duration::from_millis(last_expiry.saturating_sub(self.model.now_ms))
    }

    async fn call_and_check(&mut self, call: StoreCall) -> StoreReply {
        let reply = call.clone().run_on(self.harness).await;
        self.model.check_reply(&call, &reply);
        self.clients.observe_call(&call, &reply);
        reply
    }

    async fn run_next_step(&mut self) {
        let Some(((time, _), step)) = self.schedule.pop_first() else {
            panic!("no step is scheduled")
        };
        let elapsed = time - self.now;
        self.call_and_check(StoreCall::AdvanceTime(elapsed)).await;
        self.now = time;
        match step {
            DrainStep::PollLock(waiter_index) => self.poll_lock(waiter_index).await,
            DrainStep::Release(key, token, mode) => {
                self.call_and_check(StoreCall::Release(key, token, mode)).await;
            }
            DrainStep::Heartbeat => self.send_heartbeat().await,
            DrainStep::PollDue(shard) => self.poll_due(shard).await,
            DrainStep::ClaimHead(key) => self.claim_head(key).await,
            DrainStep::Settle(run) => self.settle_run(run).await,
        }
    }

    async fn poll_lock(&mut self, waiter_index: usize) {
        let SimulatedWaiter { key, token, mode, .. } = self.clients.waiters[waiter_index].clone();
        let call =
            self.clients.waiters[waiter_index].acquire_command(LONG_TIME, seconds_and_half(5));
        match self.call_and_check(StoreCall::Acquire(call)).await {
            StoreReply::Acquired(AcquireReply::Busy { lease_remaining, .. }) => {
                self.schedule_after(
                    lease_remaining.min(POLL_INTERVAL),
                    DrainStep::PollLock(waiter_index),
                );
            }
            _ => self.schedule_after(HOLD_TIME, DrainStep::Release(key, token, mode)),
        }
    }

    async fn send_heartbeat(&mut self) {
        let heartbeat = StoreCall::Heartbeat(self.worker.clone(), HEARTBEAT_LEASE);
        if let StoreReply::Heartbeat(heartbeat) = self.call_and_check(heartbeat).await {
            self.own_shards = heartbeat.own_shards;
        }
        let mut shards: Vec<u16> = self.clients.keys.iter().map(Key::shard).collect();
        shards.dedup();
        shards.retain(|shard| self.own_shards.contains(shard));
        for shard in shards {
            self.schedule_after(Duration::ZERO, DrainStep::PollDue(shard));
        }
        self.schedule_after(HEARTBEAT_INTERVAL, DrainStep::Heartbeat);
    }

    /// Returns true if a claim or a run of the lock is scheduled; there is at most one.
    fn is_claim_scheduled(&self, name: &Key) -> bool {
        self.schedule.values().any(|step| match step {
            DrainStep::ClaimHead(key) => key == name,
            DrainStep::Settle(run) => run.key == *name,
            _ => false,
        })
    }

    async fn poll_due(&mut self, shard: u16) {
        let StoreReply::DuePolled(due) = self.call_and_check(StoreCall::PollDue(shard)).await
        else {
            return;
        };
        for name in due.locks {
            if !self.is_claim_scheduled(&name) {
                self.schedule_after(Duration::ZERO, DrainStep::ClaimHead(name));
            }
        }
        if let Some(next) = due.next_due_in {
            self.schedule_after(next, DrainStep::PollDue(shard));
        }
    }

    async fn claim_head(&mut self, key: Key) {
        let shard = key.shard();
        for _ in 0..8 {
            let head = self.harness.heads(std::slice::from_ref(&key)).await.remove(0);
            let Some(id) = head else { break };
            let claim = claim_command(&key, &id, &LockToken::new(&self.worker));
            match self.call_and_check(StoreCall::Claim(claim.clone())).await {
                StoreReply::Claimed(ClaimOutcome::Claimed(_)) => {
                    return self.schedule_after(HOLD_TIME, DrainStep::Settle(claim));
                }
                StoreReply::Claimed(ClaimOutcome::Busy(wait) | ClaimOutcome::NotDue(wait)) => {
                    return self.schedule_after(wait, DrainStep::PollDue(shard));
                }
                _ => {}
            }
        }
        self.schedule_after(OFFER_TIMEOUT, DrainStep::PollDue(shard));
    }

    async fn settle_run(&mut self, run: ClaimCommand) {
        let ClaimCommand { key, id, token, .. } = run;
        let command = settle_command(&key, &id, &token, done_settlement());
        let settled = StoreReply::Settled(SettleOutcome::Settled(None));
        assert_eq!(self.call_and_check(StoreCall::Settle(command)).await, settled);
        self.schedule_after(OFFER_TIMEOUT, DrainStep::PollDue(key.shard()));
    }

    /// Checks that all remaining data expires.
    async fn check_nothing_remains(&mut self) {
        let store = self.harness.memory_backend();
        assert_eq!(store.persistent_entry_count(), 0, "things without an end");
        self.call_and_check(StoreCall::AdvanceTime(LONG_TIME * 200)).await;
        for key in self.clients.keys.clone() {
            for _ in 0..64 {
                self.harness.poll_due(key.shard(), 1).await;
                let empty_charge = fixed_window_item("sweep", &key, (0, LONG_TIME), 0);
                self.harness.charge(grouped_charge(vec![empty_charge])).await;
            }
        }
        assert_eq!(store.stored_value_count(), 0, "nothing has an end any more");
    }
}
