//! Support of the exhaustive model: snapshots of a lock's shard, and planted faults.

use std::fmt::Write as _;

use super::{MemoryBackend, lock_state::HolderEntry};
use crate::{
    key::{Key, SHARD_COUNT},
    store::backend::{JobId, LockToken},
};

/// Numbers of the tokens and jobs of a test's clients, so that stores that differ only in random
/// names have the same snapshot.
pub(in crate::store) trait ModelNames {
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

impl MemoryBackend {
    /// Returns all state that operations on this lock depend on, with times relative to now and
    /// sequences as ranks.
    pub(in crate::store) fn model_snapshot(
        &self,
        key: &Key,
        told: &[u64],
        names: &dyn ModelNames,
    ) -> String {
        self.with_shard(key.shard(), |shard, now| {
            let from_now = |at: u64| i128::from(at) - i128::from(now.ms);
            // A time in the past counts as now.
            let to_come = |at: u64| from_now(at).max(0);
            let (mut out, mut seqs) = (String::new(), told.to_vec());
            let line = shard.locks.get(key, now.ms);
            if let Some(line) = line {
                seqs.extend(line.waiters.iter().map(|place| place.seq));
            }
            seqs.extend(shard.jobs.iter_live(now.ms).map(|(_, job)| job.seq));
            seqs.sort_unstable();
            seqs.dedup();
            let rank = |seq: u64| seqs.iter().position(|other| *other == seq).unwrap_or(usize::MAX);
            let told: Vec<_> =
                told.iter().map(|seq| if *seq == 0 { 0 } else { 1 + rank(*seq) }).collect();
            let _ =
                write!(out, "told {told:?} due {:?}", shard.state.due_index.get(key).map(to_come));
            let watched = (shard.state.watching_node(now).is_some(), shard.state.has_worker(now));
            let _ = write!(out, " {watched:?} {} {}", shard.state.job_count, shard.state.job_bytes);
            if let Some(line) = line {
                for (member, until) in line.holders.iter().filter(|(_, until)| *until > now.ms) {
                    let who = match member {
                        HolderEntry::Holder(_, me) => ("h", names.token_number(me)),
                        HolderEntry::Offer(_, me) => ("o", names.token_number(me)),
                        HolderEntry::JobOffer(id) => ("j", names.job_number(id)),
                    };
                    let _ = write!(out, " {who:?} {}", from_now(*until));
                }
                for place in line.waiters.iter().filter(|place| place.deadline > now.ms) {
                    let (who, until) = (names.token_number(&place.token), from_now(place.deadline));
                    let _ = write!(out, " q{} {who} {until}", rank(place.seq));
                }
                let park = line.job_offer_deadline.map(to_come);
                let _ = write!(out, " park {park:?}");
                for (at, id) in line.backoffs.iter() {
                    let _ = write!(out, " back {} {}", to_come(*at), names.job_number(id));
                }
                for (seq, id) in &line.jobs {
                    let _ = write!(out, " g{} {}", rank(*seq), names.job_number(id));
                }
            }
            let mut jobs: Vec<_> = shard
                .jobs
                .iter_live(now.ms)
                .map(|(id, job)| (names.job_number(id), id, job))
                .collect();
            jobs.sort_unstable_by_key(|(name, ..)| *name);
            for (name, id, job) in jobs {
                let run = job.run_token.as_ref().map(|run| names.token_number(run));
                // Only the presence of another attempt matters.
                let attempts = job.attempts.min(job.max_attempts + 1);
                let times =
                    [job.deadline_ms, shard.state.delayed_jobs.get(id)].map(|at| at.map(to_come));
                let _ = write!(out, " [{name} {:?} {run:?} {attempts} {times:?}]", job.state);
            }
            out
        })
    }

    /// Returns the state that a snapshot omits: the last fence and the last sequence of a lock's
    /// shard, and the ends of watches and of workers' leases.
    pub(in crate::store) fn unmodeled_state(&self, key: &Key) -> Vec<u64> {
        let mut marks = self.with_shard(key.shard(), |shard, _| {
            vec![shard.state.highest_fence, shard.state.last_seq]
        });
        let watches = (0..SHARD_COUNT)
            .flat_map(|n| self.with_shard(n, |shard, _| shard.state.watch_deadlines()));
        marks.extend(watches);
        let mut leases: Vec<_> = self.live_workers.lock().values().copied().collect();
        leases.sort_unstable();
        marks.extend(leases);
        marks
    }

    /// Returns the exclusive holder.
    pub(in crate::store) fn exclusive_holder(&self, key: &Key) -> Option<LockToken> {
        self.with_shard(key.shard(), |shard, now| {
            let mut holders = shard.locks.get(key, now.ms)?.holders.iter();
            holders.find_map(|(member, _)| match member {
                HolderEntry::Holder(_, me) => Some(me.clone()),
                _ => None,
            })
        })
    }

    /// Plants a fault in the state after an operation.
    pub(in crate::store) fn plant_fault(&self, key: &Key, planted: PlantedFault) {
        self.with_shard(key.shard(), |shard, now| {
            let running = |id: &JobId| {
                let job = shard.jobs.get(id, now.ms);
                job.is_some_and(|job| job.state == crate::store::JobState::Running)
            };
            let facts = &mut shard.state;
            let line = shard.locks.get_mut(key, now.ms);
            match (planted, line) {
                (PlantedFault::DueEntryMissing, _) => facts.due_index.remove(key),
                (PlantedFault::EndedJobCounted, _) => facts.job_count += 1,
                (PlantedFault::FenceNotAdvanced, _) => facts.highest_fence = 0,
                (PlantedFault::ClaimedJobDequeued, Some(line)) => {
                    line.jobs.retain(|(_, id)| !running(id));
                }
                (PlantedFault::LeaseEndsEarly, Some(line)) => line.holders.clear(),
                (PlantedFault::QueueOutOfOrder, Some(line)) if line.jobs.len() > 1 => {
                    let last = line.jobs.pop_last().map(|(_, id)| (1, id));
                    line.jobs.extend(last);
                }
                _ => {}
            }
        });
    }
}
