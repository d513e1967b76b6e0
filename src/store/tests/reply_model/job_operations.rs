//! Checks of unclaim, redrive, purge and cancel.

use std::time::Duration;

use super::{ReplyModel, accepted_job::AcceptedJob};
use crate::store::backend::{JobId, JobState, LockToken};

/// Shortest time for which a stored job is known.
const MIN_TOMBSTONE_MS: u64 = 60_000;

impl ReplyModel {
    pub(in crate::store::tests) fn check_unclaim(
        &mut self,
        token: &LockToken,
        id: Option<&JobId>,
        reply: bool,
    ) {
        let (now, is_holder) = (self.now_ms, self.is_held_by(token));
        // Without an id, only queued jobs are searched: a delayed one has been settled.
        let is_queued =
            |job: &AcceptedJob| job.view.state.is_pending() && job.delayed_until.is_none();
        let is_candidate = |job: &&mut AcceptedJob| id == Some(&job.id) || is_queued(job);
        let mut kept_jobs = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        let job = kept_jobs.find(|job| job.run_token.as_ref() == Some(token) && is_candidate(job));
        let Some(job) = job else {
            assert!(!reply, "nothing runs by this token");
            return;
        };
        if job.view.state != JobState::Running {
            assert!(!reply, "it was settled, or undone before");
            return;
        }
        assert_eq!(reply, is_holder);
        if is_holder && job.is_past_deadline(now) {
            job.view.attempts -= 1;
            job.expire(now);
            self.remove_holder(token);
        } else if is_holder {
            job.requeue("not started");
            job.view.attempts -= 1;
            self.backoffs.insert(job.id.clone(), now + 1);
            self.remove_holder(token);
        }
    }

    pub(in crate::store::tests) fn check_redrive(&mut self, id: &JobId, reply: Option<JobState>) {
        let now = self.now_ms;
        let is_dead_job = |job: &AcceptedJob| {
            let is_dead = job.view.state == JobState::Dead && !job.view.is_tombstone;
            job.id == *id && job.is_kept(now) && is_dead
        };
        let Some(index) = self.jobs.iter().position(is_dead_job) else {
            assert_eq!(reply, self.find_job(id).map(|job| job.view.state));
            return;
        };
        assert_eq!(reply, Some(JobState::Queued));
        let mut job = self.jobs.remove(index);
        job.requeue("");
        job.view.reason = None;
        job.view.attempts = 0;
        job.view.history.ended_us = 0;
        (job.run_token, job.forgotten_ms, job.deadline_ms) = (None, None, None);
        self.jobs.push(job);
    }

    pub(in crate::store::tests) fn check_purge(&mut self, id: &JobId, reply: bool) {
        let now = self.now_ms;
        let is_ended = |job: &&mut AcceptedJob| {
            job.id == *id && job.is_kept(now) && !job.view.state.is_pending()
        };
        let job = self.jobs.iter_mut().find(is_ended).filter(|job| !job.view.is_tombstone);
        assert_eq!(reply, job.is_some());
        if let Some(job) = job {
            job.make_tombstone();
            let forgotten_ms = job.forgotten_ms.unwrap_or(0);
            // The records still end at the same time.
            for name in std::mem::take(&mut job.record_names) {
                let record = self.records.get_mut(&name).filter(|(job_id, ..)| job_id == id);
                record.into_iter().for_each(|(.., end)| *end = forgotten_ms.max(*end));
            }
            job.forgotten_ms = Some(forgotten_ms.max(job.accepted_us / 1000 + MIN_TOMBSTONE_MS));
        }
    }

    pub(in crate::store::tests) fn check_cancel(
        &mut self,
        id: &JobId,
        retention: Duration,
        reply: Option<JobState>,
    ) {
        let (now, forgotten_ms) = (self.now_ms, self.deadline_after(retention));
        let Some(job) = self.find_job(id) else {
            assert_eq!(reply, None);
            return;
        };
        if job.view.state != JobState::Queued {
            assert_eq!(reply, Some(job.view.state));
            return;
        }
        assert_eq!(reply, Some(JobState::Cancelled));
        let reason = job.view.reason.clone().unwrap_or_default();
        job.finish_as(JobState::Cancelled, &reason, (now, forgotten_ms));
        self.clear_backoff(id);
    }
}
