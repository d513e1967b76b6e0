//! What clients make of a [`Move`]: their tokens, and what they know of their places, jobs and runs.

use std::time::Duration;

use super::{
    calls::{Call, Reply},
    moves::{Item, Job, Move, time},
    rig::{LONG, Rig, fixed, neighbours, together},
};
use crate::{
    Key,
    store::{
        backend::{
            AcquireCommand, AcquireReply, ClaimCommand, ClaimOutcome, EnqueueCommand,
            EnqueueOutcome, JobId, JobPolicy, LeaseRenewal, LockMode, LockToken, MergePolicy,
            NextClaim, NodeId, OnFailure, SettleCommand, SettleOutcome, StorageLimits,
        },
        memory::ModelNames,
        rate,
    },
};

/// Three processes, with two tokens each for each of two locks.
pub(super) const NODES: usize = 3;
pub(super) const LOCKS: usize = 2;
pub(super) const TOKENS: usize = NODES * LOCKS * 2;
/// From a token to the other one of its process for the same lock.
pub(super) const SIBLING: usize = NODES * LOCKS;

/// A token that may wait, and what its process knows of its place.
#[derive(Clone)]
pub(super) struct Waiter {
    pub(super) key: Key,
    pub(super) me: LockToken,
    pub(super) mode: LockMode,
    /// It has made a shared hold of an exclusive one.
    downgraded: bool,
    old_seq: u64,
    joins: u32,
}

impl Waiter {
    pub(super) fn wait(&self, wait: Duration, lease: Duration) -> AcquireCommand {
        AcquireCommand {
            key: self.key.clone(),
            token: self.me.clone(),
            mode: self.mode,
            lease,
            max_wait: Some(wait),
            resume_seq: self.old_seq,
            record_name: None,
        }
    }

    /// The mode of what it has.
    pub(super) fn held(&self) -> LockMode {
        if self.downgraded { LockMode::Shared } else { self.mode }
    }

    /// As in a lock's line: after a lapsed offer it comes back to its old place, once.
    pub(super) fn hears(&mut self, reply: &AcquireReply) {
        match *reply {
            AcquireReply::Busy { seq, has_joined: joined, .. } if seq > 0 => {
                // It has a place of its own mode now, and gives back that one.
                self.downgraded = false;
                self.joins += u32::from(joined);
                self.old_seq = if self.joins < 2 { seq } else { 0 };
            }
            AcquireReply::Granted { .. } => (self.joins, self.old_seq) = (0, 0),
            _ => {}
        }
    }
}

/// What all of them know: it depends on the moves and on the replies alone.
pub(super) struct Clients {
    pub(super) keys: [Key; LOCKS],
    subjects: [Key; 2],
    pub(super) nodes: Vec<NodeId>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) jobs: Vec<JobId>,
    runs: Vec<ClaimCommand>,
    /// Who were last told that they have the lock.
    held: [Vec<LockToken>; LOCKS],
    latest: Option<EnqueueCommand>,
    settlement: Option<SettleCommand>,
}

impl Clients {
    /// Two locks, in one shard or in two.
    pub(super) fn new(one_shard: bool, modes: &[LockMode]) -> Self {
        let [first, second] = neighbours::<2>();
        let elsewhere = Key::custom("elsewhere");
        assert_ne!(first.shard(), elsewhere.shard());
        let subjects = [first.clone(), second.clone()];
        let keys = [first, if one_shard { second } else { elsewhere }];
        let nodes = Vec::from_iter((0..NODES).map(|_| NodeId::new()));
        let waiters = (0..TOKENS).map(|n| Waiter {
            key: keys[n % LOCKS].clone(),
            me: LockToken::new(&nodes[n % NODES]),
            mode: modes[n],
            downgraded: false,
            old_seq: 0,
            joins: 0,
        });
        Self {
            waiters: waiters.collect(),
            keys,
            subjects,
            nodes,
            jobs: Vec::new(),
            runs: Vec::new(),
            held: [const { Vec::new() }; LOCKS],
            latest: None,
            settlement: None,
        }
    }

    /// What the move comes to; `None` if there is nothing yet that it could be about.
    pub(super) async fn call(&self, rig: &Rig, made: &Move) -> Option<Call> {
        Some(match made.clone() {
            Move::Try(who, k) => Call::Acquire(self.acquire(who, k, None)),
            Move::TryNew(who, k, name) => Call::Acquire(self.acquire(who, k, Some(name))),
            Move::Wait(who, k, wait) => Call::Acquire(self.waiters[who].wait(time(wait), time(k))),
            Move::Leave(who) => {
                let waiter = self.waiters[who].clone();
                let mode = waiter.held();
                Call::Release(waiter.key, waiter.me, mode)
            }
            Move::Release(lock, n) => {
                let me = latest(&self.held[lock], n)?;
                let mode = self.waiter(&me)?.held();
                Call::Release(self.keys[lock].clone(), me, mode)
            }
            Move::HandOn(who, k, wait) => {
                let next = &self.waiters[(who + SIBLING) % TOKENS];
                let waiter = &self.waiters[who];
                let next = next.wait(time(wait), time(k));
                Call::HandOn(waiter.me.clone(), waiter.held(), next)
            }
            Move::Still(who) => {
                let Waiter { key, me, .. } = self.waiters[who].clone();
                Call::Still(key, me)
            }
            Move::Downgrade(who, k) => {
                let Waiter { key, me, .. } = self.waiters[who].clone();
                Call::Downgrade(key, me, time(k))
            }
            Move::Renew(who, k) => {
                let waiter = self.waiters[who].clone();
                let mode = waiter.held();
                renew(waiter.key, waiter.me, mode, None, k)
            }
            Move::Enqueue(job) => Call::Enqueue(self.enqueue(&job)),
            Move::EnqueueAgain => Call::Enqueue(self.latest.clone()?),
            Move::Claim(lock, k) => {
                let key = &self.keys[lock];
                let first = rig.heads(std::slice::from_ref(key)).await.remove(0);
                let id = first.or_else(|| self.jobs.last().cloned())?;
                Call::Claim(self.claim(key, id, k))
            }
            Move::ClaimAny(job, k) => {
                let id = latest(&self.jobs, job)?;
                let key = self.keys.iter().find(|key| key.shard() == id.shard())?;
                Call::Claim(self.claim(key, id, k))
            }
            Move::ClaimAgain(run, k) => {
                let lease = time(k);
                let run = latest(&self.runs, run)?;
                Call::Claim(ClaimCommand { lease, ..run })
            }
            Move::Settle(run, verdict, next) => {
                let ClaimCommand { key, id, token: me, .. } = latest(&self.runs, run)?;
                let next = next.map(|k| {
                    let ClaimCommand { token: me, lease, retention, .. } =
                        self.claim(&key, id.clone(), k);
                    NextClaim { token: me, lease, retention }
                });
                Call::Settle(SettleCommand {
                    key,
                    id,
                    token: me,
                    settlement: verdict,
                    next_claim: next,
                })
            }
            Move::SettleAgain => Call::Settle(self.settlement.clone()?),
            Move::Unclaim(run, known) => {
                let ClaimCommand { key, id, token: me, .. } = latest(&self.runs, run)?;
                Call::Unclaim(key, me, known.then_some(id))
            }
            Move::Redrive(job) => Call::Redrive(latest(&self.jobs, job)?),
            Move::Purge(job) => Call::Purge(latest(&self.jobs, job)?),
            Move::LeaveRun(run) => {
                let ClaimCommand { key, token: me, .. } = latest(&self.runs, run)?;
                Call::Release(key, me, LockMode::Exclusive)
            }
            Move::RenewRun(run, k) => {
                let ClaimCommand { key, id, token: me, .. } = latest(&self.runs, run)?;
                renew(key, me, LockMode::Exclusive, Some(id), k)
            }
            Move::Cancel(job) => Call::Cancel(latest(&self.jobs, job)?),
            Move::Charge(items) => {
                Call::Charge(together(items.iter().map(|i| self.charge(*i)).collect()))
            }
            Move::Beat(node, 0) => Call::Beat(self.nodes[node].clone(), Duration::ZERO),
            Move::Beat(node, k) => Call::Beat(self.nodes[node].clone(), time(k)),
            Move::Pause(paused) => Call::Pause(paused),
            Move::Due(lock) => Call::Due(self.keys[lock].shard()),
            Move::Pass(seconds) => Call::Pass(Duration::from_secs(seconds)),
        })
    }

    pub(super) fn hear(&mut self, call: &Call, reply: &Reply) {
        match (call, reply) {
            (Call::Acquire(call), Reply::Acquired(reply)) => self.hear_acquired(call, reply),
            (Call::Release(_, me, _), _) => self.hear_released(me),
            (Call::HandOn(me, _, next), Reply::HandedOn(_, reply)) => {
                self.hear_released(me);
                self.hear_acquired(next, reply);
            }
            (Call::Downgrade(_, me, _), Reply::Downgraded(done)) => {
                let of = self.waiters.iter_mut().filter(|waiter| waiter.me == *me);
                of.for_each(|waiter| waiter.downgraded |= done);
            }
            (Call::Enqueue(call), Reply::Enqueued(reply)) => {
                if matches!(reply, EnqueueOutcome::Stored { .. }) && !self.jobs.contains(&call.id) {
                    self.jobs.push(call.id.clone());
                }
                self.latest = Some(call.clone());
            }
            (Call::Settle(call), Reply::Settled(reply)) => {
                self.settlement = Some(call.clone());
                if let (Some(next), SettleOutcome::Settled(Some(run))) = (&call.next_claim, reply) {
                    let NextClaim { token: me, lease, retention } = next.clone();
                    let (key, id) = (call.key.clone(), run.id.clone());
                    self.runs.retain(|run| run.token != me);
                    self.runs.push(ClaimCommand { key, id, token: me, lease, retention });
                }
            }
            (Call::Claim(call), Reply::Claimed(ClaimOutcome::Claimed(_))) => {
                self.runs.retain(|run| run.token != call.token);
                self.runs.push(call.clone());
            }
            _ => {}
        }
    }

    fn hear_acquired(&mut self, call: &AcquireCommand, reply: &AcquireReply) {
        if let AcquireReply::Granted { .. } = reply {
            let lock = self.keys.iter().position(|key| *key == call.key);
            let held = &mut self.held[lock.expect("a lock of ours")];
            held.retain(|me| *me != call.token);
            held.push(call.token.clone());
        }
        let mut all = self.waiters.iter_mut();
        let waiter = all.find(|waiter| waiter.me == call.token).expect("a token of ours");
        if call.max_wait.is_some() {
            waiter.hears(reply);
        }
    }

    fn hear_released(&mut self, me: &LockToken) {
        let gone = self.waiters.iter_mut().filter(|waiter| waiter.me == *me);
        gone.for_each(|waiter| {
            (waiter.joins, waiter.old_seq, waiter.downgraded) = (0, 0, false);
        });
    }

    /// The sequences they would come back to.
    pub(super) fn told(&self) -> Vec<u64> {
        self.waiters.iter().map(|waiter| waiter.old_seq).collect()
    }

    /// What else they know, as far as it is asked for: the latest holder of a lock, and the last two runs.
    pub(super) fn picture(&self) -> String {
        let joins: Vec<_> = self.waiters.iter().map(|waiter| waiter.joins.min(2)).collect();
        let held = self.held.each_ref().map(|all| all.last().map(|me| self.token_number(me)));
        let runs: Vec<_> =
            self.runs.iter().rev().take(2).map(|run| self.job_number(&run.id)).collect();
        format!(" knows {joins:?} {held:?} {runs:?}")
    }

    fn waiter(&self, me: &LockToken) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.me == *me)
    }

    fn acquire(&self, who: usize, k: u64, record: Option<u8>) -> AcquireCommand {
        AcquireCommand {
            max_wait: None,
            resume_seq: 0,
            record_name: record.map(|name| name.to_string().into()),
            ..self.waiters[who].wait(LONG, time(k))
        }
    }

    fn claim(&self, key: &Key, id: JobId, k: u64) -> ClaimCommand {
        ClaimCommand {
            key: key.clone(),
            id,
            token: LockToken::new(&self.nodes[self.runs.len() % NODES]),
            lease: time(k),
            retention: LONG,
        }
    }

    fn enqueue(&self, job: &Job) -> EnqueueCommand {
        let key = self.keys[job.lock].clone();
        let record = |(name, print, k): (u8, u8, u64)| {
            let (name, print) = (name.to_string(), print.to_string());
            (name.into(), print, time(k))
        };
        EnqueueCommand {
            id: JobId::new(&key),
            key,
            envelope: vec![b'x'; job.bytes].into(),
            policy: JobPolicy {
                retry_after_crash: job.again,
                max_attempts: job.max_attempts,
                delay: job.delay.map_or(Duration::ZERO, time),
                deadline: job.deadline.map(time),
                on_failure: if job.skip { OnFailure::Skip } else { OnFailure::Block },
                needs_worker: job.needs_worker,
            },
            merge: job
                .merge
                .map(|(group, wins)| MergePolicy { group: group.to_string().into(), mode: wins }),
            idempotency_record: job.record.map(record),
            limits: StorageLimits {
                resource_jobs: 4,
                resource_bytes: 60,
                shard_jobs: 6,
                shard_bytes: 90,
                ..StorageLimits::NONE
            },
            owner: String::new(),
            webhook: None,
        }
    }

    fn charge(&self, (policy, subject, limit, k, cost): Item) -> rate::ChargeItem {
        let subject = &self.subjects[subject];
        fixed(&policy.to_string(), subject, (limit, time(k)), cost)
    }
}

impl ModelNames for Clients {
    fn token_number(&self, token: &LockToken) -> usize {
        let waiter = self.waiters.iter().position(|waiter| waiter.me == *token);
        let run = || self.runs.iter().rev().take(2).position(|run| run.token == *token);
        waiter.or_else(|| Some(100 + run()?)).unwrap_or(usize::MAX)
    }

    fn job_number(&self, id: &JobId) -> usize {
        self.jobs.iter().position(|job| job == id).unwrap_or(usize::MAX)
    }
}

fn renew(key: Key, me: LockToken, mode: LockMode, job: Option<JobId>, k: u64) -> Call {
    let lease = time(k);
    Call::Renew(LeaseRenewal { key, token: me, mode, lease, job })
}

/// Counted from the latest.
fn latest<T: Clone>(all: &[T], n: usize) -> Option<T> {
    (n < all.len()).then(|| all[all.len() - 1 - n].clone())
}
