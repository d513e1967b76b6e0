//! Clients that apply a [`ClientOperation`]: their tokens, and their knowledge of queue entries,
//! jobs and runs.

use std::time::Duration;

use super::{
    client_operation::{ChargeTemplate, ClientOperation, JobTemplate, seconds_and_half},
    store_call::{StoreCall, StoreReply},
    store_harness::{
        LONG_TIME, StoreHarness, fixed_window_item, grouped_charge, keys_of_one_shard,
    },
};
use crate::{
    Key,
    store::{
        backend::{
            AcquireCommand, AcquireReply, ClaimCommand, ClaimOutcome, EnqueueCommand,
            EnqueueOutcome, JobId, JobPolicy, LeaseRenewal, LockMode, LockToken, MergePolicy,
            NextClaim, NodeId, OnFailure, SettleCommand, SettleOutcome, StorageLimits,
        },
        memory::ModelClientNumbers,
        rate,
    },
};

/// Three processes, with two tokens each for each of two locks.
pub(super) const NODE_COUNT: usize = 3;
pub(super) const LOCK_COUNT: usize = 2;
pub(super) const TOKEN_COUNT: usize = NODE_COUNT * LOCK_COUNT * 2;
/// Offset from a token to the sibling token of its process for the same lock.
pub(super) const SIBLING_OFFSET: usize = NODE_COUNT * LOCK_COUNT;

/// A token that may wait, and what its process knows of its queue entry.
#[derive(Clone)]
pub(super) struct SimulatedWaiter {
    pub(super) key: Key,
    pub(super) token: LockToken,
    pub(super) mode: LockMode,
    /// True if it has downgraded an exclusive hold to a shared one.
    is_downgraded: bool,
    resume_seq: u64,
    join_count: u32,
}

impl SimulatedWaiter {
    pub(super) fn acquire_command(&self, wait: Duration, lease: Duration) -> AcquireCommand {
        AcquireCommand {
            key: self.key.clone(),
            token: self.token.clone(),
            mode: self.mode,
            lease,
            max_wait: Some(wait),
            resume_seq: self.resume_seq,
            record_name: None,
        }
    }

    /// Returns the mode of its hold.
    pub(super) fn held_mode(&self) -> LockMode {
        if self.is_downgraded { LockMode::Shared } else { self.mode }
    }

    /// Like the queue task: after a lapsed offer it resumes its old sequence, once.
    pub(super) fn observe_reply(&mut self, reply: &AcquireReply) {
        match *reply {
            AcquireReply::Busy { seq, has_joined, .. } if seq > 0 => {
                // The queue entry has the original mode, and a release refers to it.
                self.is_downgraded = false;
                self.join_count += u32::from(has_joined);
                self.resume_seq = if self.join_count < 2 { seq } else { 0 };
            }
            AcquireReply::Granted { .. } => (self.join_count, self.resume_seq) = (0, 0),
            _ => {}
        }
    }
}

/// Shared state of the clients. It depends on the operations and the replies alone.
pub(super) struct SimulatedClients {
    pub(super) keys: [Key; LOCK_COUNT],
    subjects: [Key; 2],
    pub(super) nodes: Vec<NodeId>,
    pub(super) waiters: Vec<SimulatedWaiter>,
    pub(super) jobs: Vec<JobId>,
    runs: Vec<ClaimCommand>,
    /// Tokens that last received a grant, per lock.
    held_tokens: [Vec<LockToken>; LOCK_COUNT],
    last_enqueue: Option<EnqueueCommand>,
    last_settlement: Option<SettleCommand>,
}

impl SimulatedClients {
    /// Creates clients of two locks in one shard or in two.
    pub(super) fn new(one_shard: bool, modes: &[LockMode]) -> Self {
        let [first, second] = keys_of_one_shard::<2>();
        let other_shard_key = Key::custom("elsewhere");
        assert_ne!(first.shard(), other_shard_key.shard());
        let subjects = [first.clone(), second.clone()];
        let keys = [first, if one_shard { second } else { other_shard_key }];
        let nodes = Vec::from_iter((0..NODE_COUNT).map(|_| NodeId::new()));
        let waiters = (0..TOKEN_COUNT).map(|index| SimulatedWaiter {
            key: keys[index % LOCK_COUNT].clone(),
            token: LockToken::new(&nodes[index % NODE_COUNT]),
            mode: modes[index],
            is_downgraded: false,
            resume_seq: 0,
            join_count: 0,
        });
        Self {
            waiters: waiters.collect(),
            keys,
            subjects,
            nodes,
            jobs: Vec::new(),
            runs: Vec::new(),
            held_tokens: [const { Vec::new() }; LOCK_COUNT],
            last_enqueue: None,
            last_settlement: None,
        }
    }

    /// Resolves an operation to a call; `None` if it has no target yet.
    pub(super) async fn resolve_operation(
        &self,
        rig: &StoreHarness,
        operation: &ClientOperation,
    ) -> Option<StoreCall> {
        Some(match operation.clone() {
            ClientOperation::TryAcquire(index, k) => {
                StoreCall::Acquire(self.try_acquire_command(index, k, None))
            }
            ClientOperation::TryAcquireWithRecord(index, k, name) => {
                StoreCall::Acquire(self.try_acquire_command(index, k, Some(name)))
            }
            ClientOperation::AcquireOrWait(index, k, wait) => StoreCall::Acquire(
                self.waiters[index].acquire_command(seconds_and_half(wait), seconds_and_half(k)),
            ),
            ClientOperation::Withdraw(index) => {
                let waiter = self.waiters[index].clone();
                let mode = waiter.held_mode();
                StoreCall::Release(waiter.key, waiter.token, mode)
            }
            ClientOperation::Release(lock, n) => {
                let token = nth_latest(&self.held_tokens[lock], n)?;
                let mode = self.find_waiter(&token)?.held_mode();
                StoreCall::Release(self.keys[lock].clone(), token, mode)
            }
            ClientOperation::ReleaseAndReacquire(index, k, wait) => {
                let next = &self.waiters[(index + SIBLING_OFFSET) % TOKEN_COUNT];
                let waiter = &self.waiters[index];
                let next = next.acquire_command(seconds_and_half(wait), seconds_and_half(k));
                StoreCall::ReleaseAndReacquire(waiter.token.clone(), waiter.held_mode(), next)
            }
            ClientOperation::RefreshGrant(index) => {
                let SimulatedWaiter { key, token, .. } = self.waiters[index].clone();
                StoreCall::RefreshGrant(key, token)
            }
            ClientOperation::Downgrade(index, k) => {
                let SimulatedWaiter { key, token, .. } = self.waiters[index].clone();
                StoreCall::Downgrade(key, token, seconds_and_half(k))
            }
            ClientOperation::ForceRelease(lock) => StoreCall::ForceRelease(self.keys[lock].clone()),
            ClientOperation::Renew(index, k) => {
                let waiter = self.waiters[index].clone();
                let mode = waiter.held_mode();
                renew_call(waiter.key, waiter.token, mode, None, k)
            }
            ClientOperation::Enqueue(job) => StoreCall::Enqueue(self.enqueue_command(&job)),
            ClientOperation::RepeatEnqueue => StoreCall::Enqueue(self.last_enqueue.clone()?),
            ClientOperation::ClaimHead(lock, k) => {
                let key = &self.keys[lock];
                let first = rig.heads(std::slice::from_ref(key)).await.remove(0);
                let id = first.or_else(|| self.jobs.last().cloned())?;
                StoreCall::Claim(self.claim_command(key, id, k))
            }
            ClientOperation::ClaimAnyJob(job, k) => {
                let id = nth_latest(&self.jobs, job)?;
                let key = self.keys.iter().find(|key| key.shard() == id.shard())?;
                StoreCall::Claim(self.claim_command(key, id, k))
            }
            ClientOperation::RepeatClaim(run, k) => {
                let lease = seconds_and_half(k);
                let run = nth_latest(&self.runs, run)?;
                StoreCall::Claim(ClaimCommand { lease, ..run })
            }
            ClientOperation::Settle(run, settlement, next) => {
                let ClaimCommand { key, id, token, .. } = nth_latest(&self.runs, run)?;
                let next = next.map(|k| {
                    let ClaimCommand { token, lease, retention, .. } =
                        self.claim_command(&key, id.clone(), k);
                    NextClaim { token, lease, retention }
                });
                StoreCall::Settle(SettleCommand { key, id, token, settlement, next_claim: next })
            }
            ClientOperation::RepeatSettle => StoreCall::Settle(self.last_settlement.clone()?),
            ClientOperation::Unclaim(run, with_job) => {
                let ClaimCommand { key, id, token, .. } = nth_latest(&self.runs, run)?;
                StoreCall::Unclaim(key, token, with_job.then_some(id))
            }
            ClientOperation::Redrive(job) => StoreCall::Redrive(nth_latest(&self.jobs, job)?),
            ClientOperation::Purge(job) => StoreCall::Purge(nth_latest(&self.jobs, job)?),
            ClientOperation::ReleaseRun(run) => {
                let ClaimCommand { key, token, .. } = nth_latest(&self.runs, run)?;
                StoreCall::Release(key, token, LockMode::Exclusive)
            }
            ClientOperation::RenewRun(run, k) => {
                let ClaimCommand { key, id, token, .. } = nth_latest(&self.runs, run)?;
                renew_call(key, token, LockMode::Exclusive, Some(id), k)
            }
            ClientOperation::Cancel(job) => StoreCall::Cancel(nth_latest(&self.jobs, job)?),
            ClientOperation::Charge(items) => StoreCall::Charge(grouped_charge(
                items.iter().map(|i| self.charge_item(*i)).collect(),
            )),
            ClientOperation::Heartbeat(node, 0) => {
                StoreCall::Heartbeat(self.nodes[node].clone(), Duration::ZERO)
            }
            ClientOperation::Heartbeat(node, k) => {
                StoreCall::Heartbeat(self.nodes[node].clone(), seconds_and_half(k))
            }
            ClientOperation::SetPaused(paused) => StoreCall::SetPaused(paused),
            ClientOperation::PollDue(lock) => StoreCall::PollDue(self.keys[lock].shard()),
            ClientOperation::AdvanceTime(seconds) => {
                StoreCall::AdvanceTime(Duration::from_secs(seconds))
            }
        })
    }

    pub(super) fn observe_call(&mut self, call: &StoreCall, reply: &StoreReply) {
        match (call, reply) {
            (StoreCall::Acquire(call), StoreReply::Acquired(reply)) => {
                self.observe_acquire(call, reply);
            }
            (StoreCall::Release(_, token, _), _) => self.observe_release(token),
            (
                StoreCall::ReleaseAndReacquire(token, _, next),
                StoreReply::ReleasedAndReacquired(_, reply),
            ) => {
                self.observe_release(token);
                self.observe_acquire(next, reply);
            }
            (StoreCall::Downgrade(_, token, _), StoreReply::Downgraded(done)) => {
                let downgraded = self.waiters.iter_mut().filter(|waiter| waiter.token == *token);
                downgraded.for_each(|waiter| waiter.is_downgraded |= done);
            }
            (StoreCall::Enqueue(call), StoreReply::Enqueued(reply)) => {
                if matches!(reply, EnqueueOutcome::Stored { .. }) && !self.jobs.contains(&call.id) {
                    self.jobs.push(call.id.clone());
                }
                self.last_enqueue = Some(call.clone());
            }
            (StoreCall::Settle(call), StoreReply::Settled(reply)) => {
                self.last_settlement = Some(call.clone());
                if let (Some(next), SettleOutcome::Settled(Some(run))) = (&call.next_claim, reply) {
                    let NextClaim { token, lease, retention } = next.clone();
                    let (key, id) = (call.key.clone(), run.id.clone());
                    self.runs.retain(|run| run.token != token);
                    self.runs.push(ClaimCommand { key, id, token, lease, retention });
                }
            }
            (StoreCall::Claim(call), StoreReply::Claimed(ClaimOutcome::Claimed(_))) => {
                self.runs.retain(|run| run.token != call.token);
                self.runs.push(call.clone());
            }
            _ => {}
        }
    }

    fn observe_acquire(&mut self, call: &AcquireCommand, reply: &AcquireReply) {
        if let AcquireReply::Granted { .. } = reply {
            let lock = self.keys.iter().position(|key| *key == call.key);
            let held = &mut self.held_tokens[lock.expect("a lock of the scenario")];
            held.retain(|token| *token != call.token);
            held.push(call.token.clone());
        }
        let mut waiters = self.waiters.iter_mut();
        let waiter = waiters
            .find(|waiter| waiter.token == call.token)
            .expect("a token of a simulated client");
        if call.max_wait.is_some() {
            waiter.observe_reply(reply);
        }
    }

    fn observe_release(&mut self, token: &LockToken) {
        let released = self.waiters.iter_mut().filter(|waiter| waiter.token == *token);
        released.for_each(|waiter| {
            (waiter.join_count, waiter.resume_seq, waiter.is_downgraded) = (0, 0, false);
        });
    }

    /// Returns the sequences that the waiters would resume.
    pub(super) fn resume_sequences(&self) -> Vec<u64> {
        self.waiters.iter().map(|waiter| waiter.resume_seq).collect()
    }

    /// Returns the other state that influences operations: the latest holder of each lock, and the
    /// last two runs.
    pub(super) fn state_summary(&self) -> String {
        let joins: Vec<_> = self.waiters.iter().map(|waiter| waiter.join_count.min(2)).collect();
        let held = self
            .held_tokens
            .each_ref()
            .map(|tokens| tokens.last().map(|token| self.token_number(token)));
        let runs: Vec<_> =
            self.runs.iter().rev().take(2).map(|run| self.job_number(&run.id)).collect();
        format!(" clients {joins:?} {held:?} {runs:?}")
    }

    fn find_waiter(&self, token: &LockToken) -> Option<&SimulatedWaiter> {
        self.waiters.iter().find(|waiter| waiter.token == *token)
    }

    fn try_acquire_command(
        &self,
        waiter_index: usize,
        k: u64,
        record: Option<u8>,
    ) -> AcquireCommand {
        AcquireCommand {
            max_wait: None,
            resume_seq: 0,
            record_name: record.map(|name| name.to_string().into()),
            ..self.waiters[waiter_index].acquire_command(LONG_TIME, seconds_and_half(k))
        }
    }

    fn claim_command(&self, key: &Key, id: JobId, k: u64) -> ClaimCommand {
        ClaimCommand {
            key: key.clone(),
            id,
            token: LockToken::new(&self.nodes[self.runs.len() % NODE_COUNT]),
            lease: seconds_and_half(k),
            retention: LONG_TIME,
        }
    }

    fn enqueue_command(&self, job: &JobTemplate) -> EnqueueCommand {
        let key = self.keys[job.lock].clone();
        let record = |(name, print, k): (u8, u8, u64)| {
            let (name, print) = (name.to_string(), print.to_string());
            (name.into(), print, seconds_and_half(k))
        };
        EnqueueCommand {
            id: JobId::new(&key),
            key,
            envelope: vec![b'x'; job.bytes].into(),
            policy: JobPolicy {
                retry_after_crash: job.retry_after_crash,
                max_attempts: job.max_attempts,
                delay: job.delay.map_or(Duration::ZERO, seconds_and_half),
                deadline: job.deadline.map(seconds_and_half),
                on_failure: if job.skip_on_failure { OnFailure::Skip } else { OnFailure::Block },
                needs_worker: job.needs_worker,
            },
            merge: job
                .merge
                .map(|(group, mode)| MergePolicy { group: group.to_string().into(), mode }),
            idempotency_record: job.record.map(record),
            limits: StorageLimits {
                resource_jobs: 4,
                resource_bytes: 60,
                shard_jobs: 6,
                shard_bytes: 90,
                ..StorageLimits::NONE
            },
            owner: String::new(),
            route: String::new(),
            webhook: None,
        }
    }

    fn charge_item(&self, (policy, subject, limit, k, cost): ChargeTemplate) -> rate::ChargeItem {
        let subject = &self.subjects[subject];
        fixed_window_item(&policy.to_string(), subject, (limit, seconds_and_half(k)), cost)
    }
}

impl ModelClientNumbers for SimulatedClients {
    fn token_number(&self, token: &LockToken) -> usize {
        let waiter = self.waiters.iter().position(|waiter| waiter.token == *token);
        let run = || self.runs.iter().rev().take(2).position(|run| run.token == *token);
        waiter.or_else(|| Some(100 + run()?)).unwrap_or(usize::MAX)
    }

    fn job_number(&self, id: &JobId) -> usize {
        self.jobs.iter().position(|job| job == id).unwrap_or(usize::MAX)
    }
}

fn renew_call(key: Key, token: LockToken, mode: LockMode, job: Option<JobId>, k: u64) -> StoreCall {
    let lease = seconds_and_half(k);
    StoreCall::Renew(LeaseRenewal { key, token, mode, lease, job })
}

/// Returns the `n`th item, counted from the latest.
fn nth_latest<T: Clone>(items: &[T], n: usize) -> Option<T> {
    (n < items.len()).then(|| items[items.len() - 1 - n].clone())
}
