//! The end of a random sequence: nobody does anything new, and every message is lost. Those who live go
//! on as real clients do, by their timers alone: each is served, each job ends, and nothing is left.

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

/// How soon those who live are served: the lease of a dead holder is over, dead places have cost an accept
/// window each, and jobs nobody takes one.
const WAITER_DEADLINE: Duration = Duration::from_secs(12);

/// How soon all jobs have run, once the shards of dead workers are free: as above, and their backoffs.
const JOB_DEADLINE: Duration = Duration::from_secs(18);

/// As in the lock's line: the longest time between two looks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// As the worker's: life of a watch, time between two signs of life.
const HEARTBEAT_LEASE: Duration = Duration::from_secs(15);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a lock is held, by whomever.
const HOLD_TIME: Duration = Duration::from_millis(70);

/// What somebody does next.
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

/// `crashed`: whose processes have died, of the tokens that may wait.
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
        for (who, crashed) in crashed.iter().enumerate() {
            let waiter = self.clients.waiters[who].clone();
            let mode = waiter.held_mode();
            let SimulatedWaiter { key, token: me, .. } = waiter;
            let lock = &self.model.locks[&key];
            if *crashed {
                continue;
            }
            if lock.is_held_by(&me) {
                self.schedule_after(HOLD_TIME, DrainStep::Release(key, me, mode));
            } else if lock.is_waiting(&me) {
                self.schedule_after(POLL_INTERVAL, DrainStep::PollLock(who));
            }
        }
    }

    fn schedule_after(&mut self, after: Duration, next: DrainStep) {
        self.scheduled_count += 1;
        self.schedule.insert((self.now + after, self.scheduled_count), next);
    }

    /// Living waiters, and whether jobs wait.
    fn pending_counts(&self) -> (usize, usize) {
        let looks =
            |next: &&DrainStep| matches!(next, DrainStep::PollLock(_) | DrainStep::Release(..));
        let jobs = self.model.locks.values().map(|lock| lock.pending_jobs().count());
        (self.schedule.values().filter(looks).count(), jobs.sum())
    }

    /// When the last shard that a dead worker watches is free.
    fn time_until_shards_are_free(&self) -> Duration {
        let locks = self.model.locks.values().map(|lock| lock.watched_until);
        let others = self.model.worker_expiries.values().copied();
        let ends = locks.chain(others).max().unwrap_or(0);
        Duration::from_millis(ends.saturating_sub(self.model.now_ms))
    }

    async fn call_and_check(&mut self, call: StoreCall) -> StoreReply {
        let reply = call.clone().run_on(self.harness).await;
        self.model.check_reply(&call, &reply);
        self.clients.observe_call(&call, &reply);
        reply
    }

    async fn run_next_step(&mut self) {
        let Some(((at, _), next)) = self.schedule.pop_first() else {
            panic!("nobody does anything any more")
        };
        let pass = at - self.now;
        self.call_and_check(StoreCall::AdvanceTime(pass)).await;
        self.now = at;
        match next {
            DrainStep::PollLock(who) => self.poll_lock(who).await,
            DrainStep::Release(key, me, mode) => {
                self.call_and_check(StoreCall::Release(key, me, mode)).await;
            }
            DrainStep::Heartbeat => self.send_heartbeat().await,
            DrainStep::PollDue(shard) => self.poll_due(shard).await,
            DrainStep::ClaimHead(key) => self.claim_head(key).await,
            DrainStep::Settle(run) => self.settle_run(run).await,
        }
    }

    async fn poll_lock(&mut self, who: usize) {
        let SimulatedWaiter { key, token: me, mode, .. } = self.clients.waiters[who].clone();
        let call = self.clients.waiters[who].acquire_command(LONG_TIME, seconds_and_half(5));
        match self.call_and_check(StoreCall::Acquire(call)).await {
            StoreReply::Acquired(AcquireReply::Busy { lease_remaining: left, .. }) => {
                self.schedule_after(left.min(POLL_INTERVAL), DrainStep::PollLock(who));
            }
            _ => self.schedule_after(HOLD_TIME, DrainStep::Release(key, me, mode)),
        }
    }

    async fn send_heartbeat(&mut self) {
        let beat = StoreCall::Heartbeat(self.worker.clone(), HEARTBEAT_LEASE);
        if let StoreReply::Heartbeat(beat) = self.call_and_check(beat).await {
            self.own_shards = beat.own_shards;
        }
        let mut shards: Vec<u16> = self.clients.keys.iter().map(Key::shard).collect();
        shards.dedup();
        shards.retain(|shard| self.own_shards.contains(shard));
        for shard in shards {
            self.schedule_after(Duration::ZERO, DrainStep::PollDue(shard));
        }
        self.schedule_after(HEARTBEAT_INTERVAL, DrainStep::Heartbeat);
    }

    /// One visit or run at a time is under way for a lock.
    fn is_claim_scheduled(&self, name: &Key) -> bool {
        self.schedule.values().any(|next| match next {
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
        let ClaimCommand { key, id, token: me, .. } = run;
        let verdict = settle_command(&key, &id, &me, done_settlement());
        let stands = StoreReply::Settled(SettleOutcome::Settled(None));
        assert_eq!(self.call_and_check(StoreCall::Settle(verdict)).await, stands);
        self.schedule_after(OFFER_TIMEOUT, DrainStep::PollDue(key.shard()));
    }

    /// What is left has an end; after it there is nothing.
    async fn check_nothing_remains(&mut self) {
        let store = self.harness.memory_backend();
        assert_eq!(store.persistent_entry_count(), 0, "things without an end");
        self.call_and_check(StoreCall::AdvanceTime(LONG_TIME * 200)).await;
        for key in self.clients.keys.clone() {
            for _ in 0..64 {
                self.harness.poll_due(key.shard(), 1).await;
                let nothing = fixed_window_item("sweep", &key, (0, LONG_TIME), 0);
                self.harness.charge(grouped_charge(vec![nothing])).await;
            }
        }
        assert_eq!(store.stored_value_count(), 0, "nothing has an end any more");
    }
}
