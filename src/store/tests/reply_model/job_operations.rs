//! Jobs that are taken back, redriven, purged or cancelled.

use std::time::Duration;

use super::{ReplyModel, accepted_job::AcceptedJob};
use crate::store::backend::{JobId, JobState, LockToken};

/// How long it is known of a job at least that it was stored.
const MIN_TOMBSTONE_MS: u64 = 60_000;

impl ReplyModel {
    pub(in crate::store::tests) fn check_unclaim(
        &mut self,
        me: &LockToken,
        id: Option<&JobId>,
        reply: bool,
    ) {
        let (now, held) = (self.now_ms, self.is_held_by(me));
        // Without a name it is looked for in the line: one that waits outside of it was settled.
        let stands = |job: &AcceptedJob| job.view.state.is_pending() && job.delayed_until.is_none();
        let named = |job: &&mut AcceptedJob| id == Some(&job.id) || stands(job);
        let mut known = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        let job = known.find(|job| job.run_token.as_ref() == Some(me) && named(job));
        let Some(job) = job else {
            assert!(!reply, "nothing runs by this token");
            return;
        };
        if job.view.state != JobState::Running {
            assert!(!reply, "it was settled, or undone before");
            return;
        }
        assert_eq!(reply, held);
        if held && job.is_past_deadline(now) {
            job.view.attempts -= 1;
            job.expire(now);
            self.remove_holder(me);
        } else if held {
            job.requeue("not started");
            job.view.attempts -= 1;
            self.backoffs.insert(job.id.clone(), now + 1);
            self.remove_holder(me);
        }
    }

    pub(in crate::store::tests) fn check_redrive(&mut self, id: &JobId, reply: Option<JobState>) {
        let now = self.now_ms;
        let dead = |job: &AcceptedJob| {
            let is_dead = job.view.state == JobState::Dead && !job.view.is_tombstone;
            job.id == *id && job.is_kept(now) && is_dead
        };
        let Some(at) = self.jobs.iter().position(dead) else {
            assert_eq!(reply, self.find_job(id).map(|job| job.view.state));
            return;
        };
        assert_eq!(reply, Some(JobState::Queued));
        let mut job = self.jobs.remove(at);
        job.requeue("");
        job.view.reason = None;
        job.view.attempts = 0;
        job.view.history.ended_us = 0;
        (job.run_token, job.forgotten_ms, job.deadline_ms) = (None, None, None);
        self.jobs.push(job);
    }

    pub(in crate::store::tests) fn check_purge(&mut self, id: &JobId, reply: bool) {
        let now = self.now_ms;
        let ended = |job: &&mut AcceptedJob| {
            job.id == *id && job.is_kept(now) && !job.view.state.is_pending()
        };
        let job = self.jobs.iter_mut().find(ended).filter(|job| !job.view.is_tombstone);
        assert_eq!(reply, job.is_some());
        if let Some(job) = job {
            job.make_tombstone();
            let gone = job.forgotten_ms.unwrap_or(0);
            // Records end when they would have.
            for name in std::mem::take(&mut job.record_names) {
                let its = self.records.get_mut(&name).filter(|(whose, ..)| whose == id);
                its.into_iter().for_each(|(.., end)| *end = gone.max(*end));
            }
            job.forgotten_ms = Some(gone.max(job.accepted_us / 1000 + MIN_TOMBSTONE_MS));
        }
    }

    pub(in crate::store::tests) fn check_cancel(
        &mut self,
        id: &JobId,
        retention: Duration,
        reply: Option<JobState>,
    ) {
        let (now, gone) = (self.now_ms, self.deadline_after(retention));
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
        job.finish_as(JobState::Cancelled, &reason, (now, gone));
        self.clear_backoff(id);
    }
}
