//! What the replies about jobs mean.

use std::{sync::Arc, time::Duration};

use super::Truth;
use crate::{
    clock::millis,
    store::backend::{
        ACCEPT_WINDOW, Claim, Claimed, Enqueue, Enqueued, JobId, JobState, JobView, Mode, Past,
        Run, Settle, Token, Verdict,
    },
};

pub(in crate::store::tests) struct Accepted {
    pub(in crate::store::tests) id: JobId,
    pub(in crate::store::tests) view: JobView,
    pub(in crate::store::tests) bytes: u64,
    accepted_us: u64,
    again: bool,
    max_attempts: u32,
    run: Option<Token>,
    /// When an ended one is forgotten.
    gone: Option<u64>,
}

impl Truth {
    pub(in crate::store::tests) fn pending(&self) -> impl Iterator<Item = &Accepted> {
        self.jobs.iter().filter(|job| job.view.state.is_pending())
    }

    /// Looks a job up, as a client may: not after its retention.
    pub(in crate::store::tests) fn job(&mut self, id: &JobId) -> Option<&mut Accepted> {
        let now = self.now;
        let mut known = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        known.find(|job| job.id == *id)
    }

    /// What its status must be.
    pub(in crate::store::tests) fn view(&self, id: &JobId) -> Option<JobView> {
        let mut known = self.jobs.iter().filter(|job| job.is_kept(self.now));
        let job = known.find(|job| job.id == *id)?;
        let position = (1..).zip(self.pending()).find(|(_, job)| job.id == *id);
        Some(JobView {
            position: position.map(|(at, _)| at),
            watched: self.watched,
            ..job.view.clone()
        })
    }

    /// `counted`: jobs and bytes of the shard.
    pub(in crate::store::tests) fn enqueued(
        &mut self,
        call: &Enqueue,
        reply: &Enqueued,
        counted: (u64, u64),
    ) {
        let bytes = call.envelope.len() as u64;
        let own = |job: &Accepted| (1, job.bytes);
        let (jobs, used) = self.pending().map(own).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let record = call.record.as_ref();
        let known = record.and_then(|(name, ..)| self.records.get(name));
        let known = known.filter(|(_, _, end)| *end >= self.now);
        let caps = &call.caps;
        let fits = jobs < caps.resource_jobs
            && used + bytes <= caps.resource_bytes
            && counted.0 < caps.shard_jobs
            && counted.1 + bytes <= caps.shard_bytes;
        let expected = match (self.view(&call.id), known, record) {
            (Some(view), ..) => {
                let position = view.position.unwrap_or(1);
                assert_eq!(*reply, Enqueued::Stored { position });
                return;
            }
            (None, Some((id, print, _)), Some((_, new, _))) if print == new => {
                Enqueued::Known(id.clone())
            }
            (None, Some(_), _) => Enqueued::Mismatch,
            (None, None, _) if !fits => Enqueued::Full,
            (None, None, _) => Enqueued::Stored { position: jobs + 1 },
        };
        assert_eq!(*reply, expected);
        if let Enqueued::Stored { .. } = expected {
            self.accepted(call);
        }
    }

    fn accepted(&mut self, call: &Enqueue) {
        if let Some((name, print, life)) = &call.record {
            let record = (call.id.clone(), print.clone(), self.after(*life));
            self.records.insert(Arc::clone(name), record);
        }
        self.jobs.push(Accepted {
            id: call.id.clone(),
            view: JobView {
                state: JobState::Queued,
                attempts: 0,
                position: None,
                reason: None,
                owner: call.owner.clone(),
                watched: false,
                response: None,
                past: Past::default(),
            },
            bytes: call.envelope.len() as u64,
            accepted_us: self.now * 1000,
            again: call.policy.again,
            max_attempts: call.policy.max_attempts,
            run: None,
            gone: None,
        });
    }

    /// What must be answered, if that can be known.
    fn foretold(&self, call: &Claim) -> Option<Claimed> {
        let Some(first) = self.pending().next() else {
            return Some(Claimed::Empty);
        };
        if first.id != call.id {
            return Some(Claimed::Moved(first.id.clone()));
        }
        let again = first.run.as_ref() == Some(&call.me);
        if again && first.view.state == JobState::Running && self.is_held_by(&call.me) {
            return None;
        }
        if again {
            return Some(Claimed::Busy(ACCEPT_WINDOW));
        }
        if let Some(back) = self.back.filter(|back| *back > self.now) {
            return Some(Claimed::Later(self.left(back)));
        }
        if let Some(until) = self.held_until() {
            return Some(Claimed::Busy(self.left(until)));
        }
        None
    }

    pub(in crate::store::tests) fn claimed(&mut self, call: &Claim, reply: &Claimed) {
        if let Some(expected) = self.foretold(call) {
            assert_eq!(*reply, expected);
            return;
        }
        let (now, wait) = (self.now, self.others_wait(&call.me));
        let mine = self.is_held_by(&call.me);
        let job = self.job(&call.id).expect("foretold otherwise");
        let spent = !job.again || job.view.attempts >= job.max_attempts;
        let crashed = job.view.state == JobState::Running && spent && !mine;
        match reply {
            Claimed::Claimed(Run { id, fence, attempt, envelope, accepted_us }) => {
                assert!(!crashed, "it may have run, and must not run again");
                job.view.attempts += u32::from(!mine);
                assert_eq!((*attempt, *accepted_us), (job.view.attempts, job.accepted_us));
                assert_eq!(envelope.len() as u64, job.bytes);
                assert_eq!(*id, call.id);
                job.view.state = JobState::Running;
                job.view.reason = None;
                job.run = Some(call.me.clone());
                self.back = None;
                self.granted(&call.me, Mode::Exclusive, call.lease, *fence);
            }
            Claimed::Dead(id) => {
                assert!(crashed, "it has not crashed");
                assert_eq!(*id, call.id);
                job.run = None;
                job.end(JobState::Dead, "crashed, may have run", now + millis(call.retention));
                self.back = None;
            }
            Claimed::Busy(left) => {
                assert!(wait, "it is free, and nobody stands before the job");
                assert!(*left <= ACCEPT_WINDOW, "{left:?} for an offer");
            }
            other => panic!("{other:?} of the first job"),
        }
    }

    pub(in crate::store::tests) fn settled(&mut self, call: &Settle, reply: bool) {
        let (now, mine) = (self.now, self.is_held_by(&call.me));
        let job = self.job(&call.id).filter(|job| job.run.as_ref() == Some(&call.me));
        let Some(job) = job else {
            assert!(!reply, "not its run");
            return;
        };
        if job.view.state != JobState::Running {
            assert!(reply, "its verdict stands");
            return;
        }
        assert_eq!(reply, mine);
        if !mine {
            return;
        }
        self.back = match &call.verdict {
            Verdict::Done { response, retention } => {
                job.view.response = Some(response.clone());
                job.end(JobState::Done, "", now + millis(*retention));
                None
            }
            Verdict::Dead { reason, retention } => {
                job.end(JobState::Dead, reason, now + millis(*retention));
                None
            }
            Verdict::Retry { delay, reason } => {
                job.wait(reason);
                Some(now + millis(*delay))
            }
            Verdict::Back { delay, reason } => {
                job.wait(reason);
                job.view.attempts -= 1;
                Some(now + millis(*delay))
            }
        };
        self.take(&call.me);
    }

    pub(in crate::store::tests) fn cancelled(
        &mut self,
        id: &JobId,
        retention: Duration,
        reply: Option<JobState>,
    ) {
        let gone = self.after(retention);
        let first = self.pending().next().is_some_and(|job| job.id == *id);
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
        job.end(JobState::Cancelled, &reason, gone);
        if first {
            self.back = None;
        }
    }
}

impl Accepted {
    fn is_kept(&self, now: u64) -> bool {
        self.gone.is_none_or(|gone| gone >= now)
    }

    fn end(&mut self, state: JobState, reason: &str, gone: u64) {
        assert!(self.view.state.is_pending(), "it ends twice");
        self.view.state = state;
        self.view.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self.gone = Some(gone);
    }

    fn wait(&mut self, reason: &str) {
        self.view.state = JobState::Queued;
        self.view.reason = Some(reason.to_owned());
    }
}
