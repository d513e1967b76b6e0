//! Support of the exhaustive state model: normalized snapshots of the state that decides about one
//! lock, and planted faults that the model must detect.

use std::fmt::Write as _;

use super::{
    MemoryBackend,
    lock_holders_and_queue::{HolderEntry, LockHoldersAndQueue},
    memory_shard::{MemoryShard, ServerTime},
};
use crate::{
    key::{Key, SHARD_COUNT},
    store::backend::{JobId, LockToken},
};

/// Numbers of the tokens and jobs of a test's clients, so that stores that differ only in random
/// names have the same snapshot.
pub(in crate::store) trait ModelClientNumbers {
    fn token_number(&self, token: &LockToken) -> usize;
    fn job_number(&self, id: &JobId) -> usize;
}

/// Deliberate error of the store. The model must detect each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum PlantedFault {
    /// A stored job has no due entry of its lock.
    DueEntryMissing,
    /// A claimed job leaves its queue.
    ClaimedJobDequeued,
    /// An ended job is still counted.
    EndedJobCounted,
    /// The fence does not grow.
    FenceNotAdvanced,
    /// A lease ends early.
    LeaseEndsEarly,
    /// The second job precedes the first.
    QueueOutOfOrder,
    /// A settlement counts under any token.
    RunTokenIgnored,
}

/// Text of a snapshot in progress.
struct ModelStateWriter<'a> {
    text: String,
    /// All sequences, in order; a snapshot has their ranks.
    sequences: Vec<u64>,
    numbers: &'a dyn ModelClientNumbers,
    now: ServerTime,
}

impl ModelStateWriter<'_> {
    fn rank(&self, seq: u64) -> usize {
        self.sequences.iter().position(|listed| *listed == seq).unwrap_or(usize::MAX)
    }

    fn ms_from_now(&self, at: u64) -> i128 {
        i128::from(at) - i128::from(self.now.ms)
    }

    /// A time in the past counts as now.
    fn ms_left(&self, at: u64) -> i128 {
        self.ms_from_now(at).max(0)
    }

    fn write_shard(&mut self, key: &Key, shard: &MemoryShard, resume_sequences: &[u64]) {
        let resume_ranks: Vec<_> = resume_sequences
            .iter()
            .map(|seq| if *seq == 0 { 0 } else { 1 + self.rank(*seq) })
            .collect();
        let state = &shard.state;
        let due = state.due_index.get(key).map(|at| self.ms_left(at));
        let _ = write!(self.text, "resume {resume_ranks:?} due {due:?}");
        let watch_state = (state.watching_node(self.now).is_some(), state.has_worker(self.now));
        let _ = write!(self.text, " {watch_state:?} {} {}", state.job_count, state.job_bytes);
    }

    fn write_lock(&mut self, lock: &LockHoldersAndQueue) {
        let now_ms = self.now.ms;
        for (member, deadline) in lock.holders.iter().filter(|(_, deadline)| *deadline > now_ms) {
            let client = match member {
                HolderEntry::Holder(_, token) => ("h", self.numbers.token_number(token)),
                HolderEntry::Offer(_, token) => ("o", self.numbers.token_number(token)),
                HolderEntry::JobOffer(id) => ("j", self.numbers.job_number(id)),
            };
            let ends_in = self.ms_from_now(*deadline);
            let _ = write!(self.text, " {client:?} {ends_in}");
        }
        for waiter in lock.waiters.iter().filter(|waiter| waiter.deadline > now_ms) {
            let (rank, client) = (self.rank(waiter.seq), self.numbers.token_number(&waiter.token));
            let ends_in = self.ms_from_now(waiter.deadline);
            let _ = write!(self.text, " q{rank} {client} {ends_in}");
        }
        let offer_left = lock.job_offer_deadline.map(|at| self.ms_left(at));
        let _ = write!(self.text, " offer {offer_left:?}");
        for (at, id) in lock.backoffs.iter() {
            let (backoff_left, job) = (self.ms_left(*at), self.numbers.job_number(id));
            let _ = write!(self.text, " backoff {backoff_left} {job}");
        }
        for (seq, id) in &lock.jobs {
            let (rank, job) = (self.rank(*seq), self.numbers.job_number(id));
            let _ = write!(self.text, " g{rank} {job}");
        }
    }

    fn write_jobs(&mut self, shard: &MemoryShard) {
        let mut jobs: Vec<_> = shard
            .jobs
            .iter_live(self.now.ms)
            .map(|(id, job)| (self.numbers.job_number(id), id, job))
            .collect();
        jobs.sort_unstable_by_key(|(number, ..)| *number);
        for (number, id, job) in jobs {
            let run = job.run_token.as_ref().map(|token| self.numbers.token_number(token));
            // Only the presence of another attempt matters.
            let attempts = job.attempts.min(job.max_attempts + 1);
            let times = [job.deadline_ms, shard.state.delayed_jobs.get(id)]
                .map(|at| at.map(|at| self.ms_left(at)));
            let _ = write!(self.text, " [{number} {:?} {run:?} {attempts} {times:?}]", job.state);
        }
    }
}

impl MemoryBackend {
    /// Returns all state that operations on this lock depend on, with times relative to now and
    /// sequences as ranks.
    pub(in crate::store) fn model_snapshot(
        &self,
        key: &Key,
        resume_sequences: &[u64],
        numbers: &dyn ModelClientNumbers,
    ) -> String {
        self.with_shard(key.shard(), |shard, now| {
            let lock = shard.locks.get(key, now.ms);
            let mut sequences = resume_sequences.to_vec();
            if let Some(lock) = lock {
                sequences.extend(lock.waiters.iter().map(|waiter| waiter.seq));
            }
            sequences.extend(shard.jobs.iter_live(now.ms).map(|(_, job)| job.seq));
            sequences.sort_unstable();
            sequences.dedup();
            let mut writer = ModelStateWriter { text: String::new(), sequences, numbers, now };
            writer.write_shard(key, shard, resume_sequences);
            if let Some(lock) = lock {
                writer.write_lock(lock);
            }
            writer.write_jobs(shard);
            writer.text
        })
    }

    /// Returns the state that a snapshot omits: the last fence and the last sequence of a lock's
    /// shard, and the ends of watches and of workers' leases.
    pub(in crate::store) fn unmodeled_state(&self, key: &Key) -> Vec<u64> {
        let mut state_values = self.with_shard(key.shard(), |shard, _| {
            vec![shard.state.highest_fence, shard.state.last_seq]
        });
        let watches = (0..SHARD_COUNT)
            .flat_map(|n| self.with_shard(n, |shard, _| shard.state.watch_deadlines()));
        state_values.extend(watches);
        let mut leases: Vec<_> = self.live_workers.lock().values().copied().collect();
        leases.sort_unstable();
        state_values.extend(leases);
        state_values
    }

    /// Returns the exclusive holder.
    pub(in crate::store) fn exclusive_holder(&self, key: &Key) -> Option<LockToken> {
        self.with_shard(key.shard(), |shard, now| {
            let mut holders = shard.locks.get(key, now.ms)?.holders.iter();
            holders.find_map(|(member, _)| match member {
                HolderEntry::Holder(_, token) => Some(token.clone()),
                _ => None,
            })
        })
    }

    /// Plants a fault in the state after an operation.
    pub(in crate::store) fn plant_fault(&self, key: &Key, fault: PlantedFault) {
        self.with_shard(key.shard(), |shard, now| {
            let is_running = |id: &JobId| {
                let job = shard.jobs.get(id, now.ms);
                job.is_some_and(|job| job.state == crate::store::JobState::Running)
            };
            let state = &mut shard.state;
            let lock = shard.locks.get_mut(key, now.ms);
            match (fault, lock) {
                (PlantedFault::DueEntryMissing, _) => state.due_index.remove(key),
                (PlantedFault::EndedJobCounted, _) => state.job_count += 1,
                (PlantedFault::FenceNotAdvanced, _) => state.highest_fence = 0,
                (PlantedFault::ClaimedJobDequeued, Some(lock)) => {
                    lock.jobs.retain(|(_, id)| !is_running(id));
                }
                (PlantedFault::LeaseEndsEarly, Some(lock)) => lock.holders.clear(),
                (PlantedFault::QueueOutOfOrder, Some(lock)) if lock.jobs.len() > 1 => {
                    let moved_job = lock.jobs.pop_last().map(|(_, id)| (1, id));
                    lock.jobs.extend(moved_job);
                }
                _ => {}
            }
        });
    }
}
