//! Jobs that are taken back, redriven, purged or cancelled.

use std::time::Duration;

use super::{Truth, jobs::Accepted};
use crate::store::backend::{JobId, JobState, LockToken};

/// How long it is known of a job at least that it was stored.
const STORED: u64 = 60_000;

impl Truth {
    pub(in crate::store::tests) fn unclaimed(
        &mut self,
        me: &LockToken,
        id: Option<&JobId>,
        reply: bool,
    ) {
        let (now, held) = (self.now, self.is_held_by(me));
        // Without a name it is looked for in the line: one that waits outside of it was settled.
        let stands = |job: &Accepted| job.view.state.is_pending() && job.late.is_none();
        let named = |job: &&mut Accepted| id == Some(&job.id) || stands(job);
        let mut known = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        let job = known.find(|job| job.run.as_ref() == Some(me) && named(job));
        let Some(job) = job else {
            assert!(!reply, "nothing runs by this token");
            return;
        };
        if job.view.state != JobState::Running {
            assert!(!reply, "it was settled, or undone before");
            return;
        }
        assert_eq!(reply, held);
        if held && job.is_over(now) {
            job.view.attempts -= 1;
            job.expire(now);
            self.take(me);
        } else if held {
            job.wait("not started");
            job.view.attempts -= 1;
            self.back.insert(job.id.clone(), now + 1);
            self.take(me);
        }
    }

    pub(in crate::store::tests) fn redriven(&mut self, id: &JobId, reply: Option<JobState>) {
        let now = self.now;
        let dead = |job: &Accepted| {
            let is_dead = job.view.state == JobState::Dead && !job.view.is_tombstone;
            job.id == *id && job.is_kept(now) && is_dead
        };
        let Some(at) = self.jobs.iter().position(dead) else {
            assert_eq!(reply, self.job(id).map(|job| job.view.state));
            return;
        };
        assert_eq!(reply, Some(JobState::Queued));
        let mut job = self.jobs.remove(at);
        job.wait("");
        job.view.reason = None;
        job.view.attempts = 0;
        job.view.history.ended_us = 0;
        (job.run, job.gone, job.exp) = (None, None, None);
        self.jobs.push(job);
    }

    pub(in crate::store::tests) fn purged(&mut self, id: &JobId, reply: bool) {
        let now = self.now;
        let ended =
            |job: &&mut Accepted| job.id == *id && job.is_kept(now) && !job.view.state.is_pending();
        let job = self.jobs.iter_mut().find(ended).filter(|job| !job.view.is_tombstone);
        assert_eq!(reply, job.is_some());
        if let Some(job) = job {
            job.entomb();
            let gone = job.gone.unwrap_or(0);
            // Records end when they would have.
            for name in std::mem::take(&mut job.records) {
                let its = self.records.get_mut(&name).filter(|(whose, ..)| whose == id);
                its.into_iter().for_each(|(.., end)| *end = gone.max(*end));
            }
            job.gone = Some(gone.max(job.accepted_us / 1000 + STORED));
        }
    }

    pub(in crate::store::tests) fn cancelled(
        &mut self,
        id: &JobId,
        retention: Duration,
        reply: Option<JobState>,
    ) {
        let (now, gone) = (self.now, self.after(retention));
        let Some(job) = self.job(id) else {
            assert_eq!(reply, None);
            return;
        };
        if job.view.state != JobState::Queued {
            assert_eq!(reply, Some(job.view.state));
            return;
        }
        assert_eq!(reply, Some(JobState::Cancelled));
        let reason = job.view.reason.clone().unwrap_or_default();
        job.end(JobState::Cancelled, &reason, (now, gone));
        self.forget_backoff(id);
    }
}
