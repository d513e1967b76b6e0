//! `read_job.lua`, `list_ended_jobs.lua`, `list_pending_jobs.lua`, `redrive_job.lua`,
//! `purge_job.lua` and `shard_stats.lua`.

use std::time::Duration;

use super::{
    ended_job_index::EndedJobIndex,
    enqueue::MAX_PENDING_RECORD_RETENTION,
    job_record::JobRecord,
    lock_state::HolderEntry,
    lock_transaction::LockTransaction,
    memory_shard::{MemoryShard, ServerTime},
};
use crate::{
    key::{Key, digest_parts},
    store::backend::{
        ActiveRun, EndedFilter, JobHistory, JobId, JobListPage, JobState, JobView, LockMode,
        PendingCursor, ShardStats,
    },
};

impl MemoryShard {
    pub(super) fn job_view(&self, id: &JobId, now: ServerTime) -> Option<JobView> {
        let job = self.jobs.get(id, now.ms)?;
        let line = self.locks.get(&job.lock, now.ms);
        let position = line.and_then(|line| line.job_position(job.seq, id));
        let back = line.and_then(|line| line.backoffs.end_of(id));
        let at = if position.is_some() { back } else { self.state.delayed_jobs.get(id) };
        let waits = at.filter(|at| job.state == JobState::Queued && *at > now.ms);
        let view = job.to_view();
        Some(JobView {
            position,
            is_watched: self.state.has_worker(now),
            response: job.response.clone(),
            history: JobHistory {
                due_in: waits.map(|at| Duration::from_millis(at - now.ms)),
                webhook_event: job.webhook_event.clone(),
                ..view.history
            },
            ..view
        })
    }

    pub(super) fn active_run(&self, id: &JobId, now: ServerTime) -> Option<ActiveRun> {
        let job = self.jobs.get(id, now.ms).filter(|job| job.state == JobState::Running)?;
        let holds = HolderEntry::holder(LockMode::Exclusive, job.run_token.as_ref()?);
        let until = self.locks.get(&job.lock, now.ms)?.deadline_of(&holds)?;
        (until > now.ms)
            .then_some(ActiveRun { attempt: job.attempts, first_fence: job.first_fence })
    }

    fn ended_index(&self, which: EndedFilter) -> &EndedJobIndex {
        match which {
            EndedFilter::Dead => &self.state.dead_jobs,
            EndedFilter::Done => &self.state.done_jobs,
        }
    }

    pub(super) fn list_ended(
        &self,
        which: EndedFilter,
        from: u64,
        most: usize,
        now: ServerTime,
    ) -> JobListPage {
        let most = most.min(100);
        let mut marks = self.ended_index(which).iter_from(from, now.us);
        let mut jobs = Vec::new();
        for (_, id) in marks.by_ref().take(most) {
            if let Some(job) = self.jobs.get(id, now.ms) {
                let watched = self.state.has_worker(now);
                jobs.push((id.clone(), JobView { is_watched: watched, ..job.to_view() }));
            }
        }
        JobListPage { jobs, next_mark: marks.next().map(|(mark, _)| mark) }
    }

    /// Lists in the order of marks, which concurrent changes do not affect.
    pub(super) fn list_pending(
        &self,
        from: PendingCursor,
        most: usize,
        now: ServerTime,
    ) -> JobListPage<PendingCursor> {
        let late =
            self.state.delayed_jobs.iter().map(|(_, id)| (PendingCursor::for_delayed(id), id));
        let lines = self.state.due_index.iter().flat_map(|(_, name)| {
            let jobs = self.locks.get(name, now.ms).into_iter().flat_map(|line| &line.jobs);
            jobs.map(|(seq, id)| (PendingCursor::for_queued(name, *seq), id))
        });
        let mut all: Vec<_> = late.chain(lines).filter(|(mark, _)| *mark > from).collect();
        all.sort_unstable();
        let more = all.len() > most.clamp(1, 100);
        all.truncate(most.clamp(1, 100));
        let next = all.last().map(|(mark, _)| *mark).filter(|_| more);
        let view = |(_, id): (PendingCursor, &JobId)| {
            let job = self.job_view(id, now).filter(|job| job.state.is_pending())?;
            Some((
                id.clone(),
                JobView { history: JobHistory { webhook_event: None, ..job.history }, ..job },
            ))
        };
        JobListPage { jobs: all.into_iter().filter_map(view).collect(), next_mark: next }
    }

    pub(super) fn purge_job(&mut self, id: &JobId, ended_us: u64, now: ServerTime) -> bool {
        let ended = |job: &&JobRecord| {
            !job.state.is_pending() && !job.is_tombstone && job.ended_us == ended_us
        };
        let Some(job) = self.jobs.get(id, now.ms).filter(ended) else { return false };
        match job.state {
            JobState::Dead => self.state.dead_jobs.remove_manually(id),
            _ => self.state.done_jobs.remove_manually(id),
        }
        self.state.leave_tombstone(&mut self.jobs, id, now);
        true
    }

    pub(super) fn shard_stats(&self, now: ServerTime) -> ShardStats {
        let facts = &self.state;
        let (done, trimmed_done) = facts.done_jobs.count_retained_and_trimmed(now.us);
        let (dead, trimmed_dead) = facts.dead_jobs.count_retained_and_trimmed(now.us);
        ShardStats {
            pending: facts.job_count,
            bytes: facts.job_bytes,
            delayed: facts.delayed_jobs.iter().count() as u64,
            done,
            dead,
            trimmed_done,
            trimmed_dead,
            expired: facts.expired_count,
            cancelled: facts.cancelled_count,
        }
    }
}

impl PendingCursor {
    fn for_delayed(id: &JobId) -> Self {
        Self { after_hash: hash_prefix(id.as_str()), after_seq: 1, ..Self::default() }
    }

    fn for_queued(name: &Key, seq: u64) -> Self {
        Self {
            in_queues: true,
            after_hash: hash_prefix(name.as_str()),
            after_seq: seq,
            ..Self::default()
        }
    }
}

fn hash_prefix(name: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest_parts(&[name.as_bytes()]);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Maximum number of runs in a job's history.
const MAX_RECENT_RUNS: usize = 20;

impl JobRecord {
    /// Adds a run to the history.
    pub(super) fn record_run(&mut self, now_us: u64, outcome: &str) {
        if self.recent_runs.len() == MAX_RECENT_RUNS {
            self.recent_runs.remove(0);
        }
        self.recent_runs.push(format!("{} {} {now_us} {outcome}", self.attempts, self.started_us));
    }

    /// Returns the state and reason that end the job instead of a run: it was running and its
    /// worker crashed, or its deadline has passed.
    pub(super) fn unrunnable_outcome(&self, now: u64) -> Option<(JobState, &'static str)> {
        if self.state == JobState::Running
            && (!self.retry_after_crash || self.attempts >= self.max_attempts)
        {
            return Some((JobState::Dead, "crashed, may have run"));
        }
        self.deadline_ms.is_some_and(|exp| exp <= now).then_some((JobState::Expired, "deadline"))
    }

    /// Returns the part of the view that the record contains.
    fn to_view(&self) -> JobView {
        JobView {
            state: self.state,
            attempts: self.attempts,
            position: None,
            reason: Some(self.reason.to_owned()).filter(|reason| !reason.is_empty()),
            owner: self.owner.clone(),
            is_watched: false,
            response: None,
            is_tombstone: self.is_tombstone,
            history: JobHistory {
                lock: Some(self.lock.clone()),
                bytes: self.bytes,
                accepted_us: self.accepted_us,
                started_us: self.started_us,
                ended_us: self.ended_us,
                crash_count: self.crash_count,
                busy_count: self.busy_count,
                due_in: None,
                recent_runs: self.recent_runs.clone(),
                superseded_by: self.superseded_by.clone(),
                webhook_event: None,
            },
        }
    }
}

impl LockTransaction<'_> {
    pub(super) fn redrive_job(&mut self, id: &JobId, ended_us: u64) -> Option<JobState> {
        let job = self.jobs.get(id, self.now.ms)?;
        if job.state != JobState::Dead || job.is_tombstone || job.ended_us != ended_us {
            return Some(job.state);
        }
        let (bytes, owner) = (job.bytes, job.owner.clone());
        let seq = self.next_seq();
        self.shard.dead_jobs.remove_manually(id);
        if let Some(job) = self.jobs.get_mut(id, self.now.ms) {
            (job.state, job.seq, job.attempts) = (JobState::Queued, seq, 0);
            (job.run_token, job.deadline_ms, job.reason, job.ended_us) = (None, None, "", 0);
        }
        self.jobs.set_expiry(id, None);
        self.extend_job_records(id, self.now.deadline_after(MAX_PENDING_RECORD_RETENTION));
        self.shard.count_job(&owner, bytes);
        self.insert_into_queue(seq, id, bytes);
        self.publish_job_change(id);
        Some(JobState::Queued)
    }
}
