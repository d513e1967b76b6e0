//! Status, listings, redrive, purge, pause and statistics of jobs.
//!
//! `read_job.lua`, `read_current_run.lua`, `list_ended_jobs.lua`, `list_pending_jobs.lua`,
//! `redrive_job.lua`, `purge_job_to_tombstone.lua`, `pause_jobs.lua` and `shard_stats.lua`.

use std::{sync::atomic::Ordering, time::Duration};

use super::{
    MemoryBackend,
    ended_job_index::EndedJobIndex,
    enqueue_or_merge_job::MAX_PENDING_RECORD_RETENTION,
    job_record::JobRecord,
    lock_holders_and_queue::HolderEntry,
    lock_transaction::LockTransaction,
    memory_shard::{MemoryShard, ServerTime},
};
use crate::{
    key::{Key, SHARD_COUNT, digest_parts},
    store::backend::{
        ActiveRun, EndedJobFilter, JobHistory, JobId, JobListPage, JobState, JobView, LockMode,
        PendingCursor, ShardStats,
    },
};

impl MemoryBackend {
    /// Pauses or resumes the jobs of all workers.
    pub(super) fn apply_pause(&self, paused: bool) {
        self.jobs_paused.store(paused, Ordering::SeqCst);
        if paused {
            (0..SHARD_COUNT)
                .for_each(|shard| self.with_shard(shard, |shard, _| shard.state.end_watch()));
        }
        self.notify_workers();
    }
}

impl MemoryShard {
    pub(super) fn job_view(&self, id: &JobId, now: ServerTime) -> Option<JobView> {
        let job = self.jobs.get(id, now.ms)?;
        let lock = self.locks.get(&job.lock, now.ms);
        let position = lock.and_then(|lock| lock.job_position(job.seq, id));
        let backoff_end_ms = lock.and_then(|lock| lock.backoffs.end_of(id));
        let due_ms =
            if position.is_some() { backoff_end_ms } else { self.state.delayed_jobs.get(id) };
        let future_due_ms =
            due_ms.filter(|due_ms| job.state == JobState::Queued && *due_ms > now.ms);
        let view = job.to_view();
        Some(JobView {
            position,
            is_watched: self.state.has_worker(now),
            response: job.response.clone(),
            history: JobHistory {
                due_in: future_due_ms.map(|due_ms| Duration::from_millis(due_ms - now.ms)),
                webhook_event: job.webhook_event.clone(),
                ..view.history
            },
            ..view
        })
    }

    pub(super) fn active_run(&self, id: &JobId, now: ServerTime) -> Option<ActiveRun> {
        let job = self.jobs.get(id, now.ms).filter(|job| job.state == JobState::Running)?;
        let holder = HolderEntry::holder(LockMode::Exclusive, job.run_token.as_ref()?);
        let deadline_ms = self.locks.get(&job.lock, now.ms)?.deadline_of(&holder)?;
        (deadline_ms > now.ms)
            .then_some(ActiveRun { attempt: job.attempts, first_fence: job.first_fence })
    }

    fn ended_index(&self, filter: EndedJobFilter) -> &EndedJobIndex {
        match filter {
            EndedJobFilter::Dead => &self.state.dead_jobs,
            EndedJobFilter::Done => &self.state.done_jobs,
        }
    }

    pub(super) fn list_ended(
        &self,
        filter: EndedJobFilter,
        from_mark: u64,
        max_jobs: usize,
        now: ServerTime,
    ) -> JobListPage {
        let max_jobs = max_jobs.min(100);
        let mut entries = self.ended_index(filter).iter_from(from_mark, now.us);
        let mut jobs = Vec::new();
        for (_, id) in entries.by_ref().take(max_jobs) {
            if let Some(job) = self.jobs.get(id, now.ms) {
                let is_watched = self.state.has_worker(now);
                jobs.push((id.clone(), JobView { is_watched, ..job.to_view() }));
            }
        }
        JobListPage { jobs, next_mark: entries.next().map(|(mark, _)| mark) }
    }

    /// Lists in the order of marks, which concurrent changes do not affect.
    pub(super) fn list_pending(
        &self,
        after: PendingCursor,
        max_jobs: usize,
        now: ServerTime,
    ) -> JobListPage<PendingCursor> {
        let delayed =
            self.state.delayed_jobs.iter().map(|(_, id)| (PendingCursor::for_delayed(id), id));
        let queued = self.state.due_index.iter().flat_map(|(_, name)| {
            let jobs = self.locks.get(name, now.ms).into_iter().flat_map(|lock| &lock.jobs);
            jobs.map(|(seq, id)| (PendingCursor::for_queued(name, *seq), id))
        });
        let mut page: Vec<_> = delayed.chain(queued).filter(|(mark, _)| *mark > after).collect();
        page.sort_unstable();
        let has_more = page.len() > max_jobs.clamp(1, 100);
        page.truncate(max_jobs.clamp(1, 100));
        let next_mark = page.last().map(|(mark, _)| *mark).filter(|_| has_more);
        let view = |(_, id): (PendingCursor, &JobId)| {
            let job = self.job_view(id, now).filter(|job| job.state.is_pending())?;
            Some((
                id.clone(),
                JobView { history: JobHistory { webhook_event: None, ..job.history }, ..job },
            ))
        };
        JobListPage { jobs: page.into_iter().filter_map(view).collect(), next_mark }
    }

    pub(super) fn purge_job(&mut self, id: &JobId, ended_us: u64, now: ServerTime) -> bool {
        let is_purgeable = |job: &&JobRecord| {
            !job.state.is_pending() && !job.is_tombstone && job.ended_us == ended_us
        };
        let Some(job) = self.jobs.get(id, now.ms).filter(is_purgeable) else { return false };
        match job.state {
            JobState::Dead => self.state.dead_jobs.remove_manually(id),
            _ => self.state.done_jobs.remove_manually(id),
        }
        self.state.leave_tombstone(&mut self.jobs, id, now);
        true
    }

    pub(super) fn shard_stats(&self, now: ServerTime) -> ShardStats {
        let state = &self.state;
        let (done, trimmed_done) = state.done_jobs.count_retained_and_trimmed(now.us);
        let (dead, trimmed_dead) = state.dead_jobs.count_retained_and_trimmed(now.us);
        ShardStats {
            pending: state.job_count,
            bytes: state.job_bytes,
            delayed: state.delayed_jobs.iter().count() as u64,
            done,
            dead,
            trimmed_done,
            trimmed_dead,
            expired: state.expired_count,
            cancelled: state.cancelled_count,
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
