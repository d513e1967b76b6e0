//! One step at a line: what `line.lua` is on Redis. Names and order of steps are the same there.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    ends::Expiring,
    facts::Facts,
    job::Job,
    line::{Line, Member, Place},
    post::Mail,
    shard::Now,
};
use crate::{
    key::Key,
    store::{
        backend::{OFFER_TIMEOUT, JobId, LockMode, Contenders, SPARE_FENCES, LockToken},
        wakeups::WakeupMessage,
    },
};

/// Rows that one step may look at: a bound on its running time, not on the line.
pub(super) const SCAN: usize = 100;

/// An idempotency record is kept beside the lock it is about: of another lock it is another record.
pub(super) type RecordName = (Key, Arc<str>);

/// One step at one line.
pub(super) struct Visit<'a> {
    pub(super) key: &'a Key,
    pub(super) line: &'a mut Line,
    pub(super) facts: &'a mut Facts,
    pub(super) jobs: &'a mut Expiring<JobId, Job>,
    pub(super) records: &'a mut Expiring<RecordName, (JobId, String)>,
    pub(super) post: &'a mut Vec<Mail>,
    pub(super) now: Now,
}

impl Visit<'_> {
    pub(super) fn accept_until(&self) -> u64 {
        self.now.after(OFFER_TIMEOUT)
    }

    pub(super) fn tell(&mut self, node: &str, hint: WakeupMessage) {
        let to = Some(node.into());
        self.post.push(Mail { to, hint });
    }

    pub(super) fn tell_all(&mut self, id: &JobId) {
        let hint = WakeupMessage::JobChanged(id.clone());
        self.post.push(Mail { to: None, hint });
    }

    /// Takes expired holders and offers out; the latest deadline that is left, or `None` if free.
    pub(super) fn held_until(&mut self) -> Option<u64> {
        let now = self.now.ms;
        self.line.holders.retain(|(_, deadline)| *deadline > now);
        self.line.holders.iter().map(|(_, deadline)| *deadline).max()
    }

    /// The mode of those who have it; `None` if it is free.
    pub(super) fn held(&mut self) -> Option<&'static str> {
        self.held_until()?;
        self.line.holders.first().map(|(member, _)| member.letter())
    }

    /// Whether one more of this mode may come in.
    pub(super) fn fits(&mut self, mode: LockMode) -> bool {
        match self.held() {
            None => true,
            Some(held) if held != mode.wire_letter() => false,
            Some(_) => match mode {
                LockMode::Exclusive => false,
                LockMode::Shared => true,
                LockMode::Permits(most) => self.line.holders.len() < most as usize,
            },
        }
    }

    /// What a request that was not let in is told: until when, and the length of the line. Where nothing
    /// but permits is wanting, it waits for the one that leaves fewer than there may be.
    pub(super) fn busy_for(&mut self, mode: LockMode) -> (Duration, u64) {
        let mut until = self.held_until();
        if let LockMode::Permits(most) = mode
            && self.held() == Some(mode.wire_letter())
        {
            let mut ends = Vec::from_iter(self.line.holders.iter().map(|(_, end)| *end));
            ends.sort_unstable();
            let over = ends.len().checked_sub(most as usize);
            until = over.and_then(|over| ends.get(over).copied()).or(until);
        }
        let left = until.unwrap_or_else(|| self.accept_until()).saturating_sub(self.now.ms);
        (Duration::from_millis(left.max(1)), self.line.len())
    }

    /// A fence above every fence ever given in this shard; the spare ones are the holder's too.
    pub(super) fn grant(&mut self, me: &LockToken, mode: LockMode, lease: Duration) -> u64 {
        let (fence, member) = (self.next_fence(), Member::holds(mode, me));
        // A copy of a call that was late shortens nothing.
        let until = self.line.deadline(&member).unwrap_or(0).max(self.now.after(lease));
        self.line.put(member, until);
        fence
    }

    pub(super) fn next_fence(&mut self) -> u64 {
        let fence = (self.facts.fence + 1).max(self.now.us);
        self.facts.fence = fence + SPARE_FENCES;
        fence
    }

    /// Sets when a worker should look at this lock, and tells the watcher if it must wake sooner. Another lock
    /// that is overdue is no reason to be silent: the worker has been there, and may not look again for its sake.
    pub(super) fn arm(&mut self, at: u64) {
        let first = self.facts.due.iter().next().map(|(first, _)| first);
        self.facts.due.set(self.key, at);
        let sooner = first.is_none_or(|first| first <= self.now.ms || at < first);
        if let Some(node) = self.facts.watcher(self.now).filter(|_| sooner).cloned() {
            self.tell(&node, WakeupMessage::ShardDue(self.key.shard()));
        }
    }

    /// As `arm`, but a look that is due already stays so, and one that comes sooner too: it ends the
    /// passing over of jobs, and traffic must not put it off.
    pub(super) fn arm_by(&mut self, at: u64) {
        if self.facts.due.get(self.key).is_none_or(|due| due > at) {
            self.arm(at);
        }
    }

    /// Tells the processes of all holders who joined the line, each once.
    pub(super) fn tell_holders(&mut self, who: Contenders) {
        let mut told = HashSet::new();
        for (member, _) in self.line.holders.iter().take(SCAN) {
            if let Member::Holds(_, me) = member
                && told.insert(me.node())
            {
                let to = Some(me.node().into());
                let hint = WakeupMessage::QueueJoin(self.key.clone(), who);
                self.post.push(Mail { to, hint });
            }
        }
    }

    /// First place whose process may still be waiting. (All the dead ones before it go: here that is
    /// cheap. The script looks at so many, and lets nobody past the rest.)
    pub(super) fn live_head(&mut self) -> Option<Place> {
        loop {
            let place = self.line.places.first()?.clone();
            if place.deadline > self.now.ms {
                return Some(place);
            }
            self.line.drop_place(&place);
        }
    }

    /// Until when this job is in backoff.
    pub(super) fn backoff(&self, job: &JobId) -> Option<u64> {
        self.line.back.of(job).filter(|at| *at > self.now.ms)
    }

    /// First job, unless the jobs are passed over: an offer to them lapsed, the first one is in
    /// backoff, or no worker watches the shard.
    pub(super) fn jobs_head(&self) -> Option<(u64, JobId)> {
        let lapsed = self.line.park.is_some_and(|park| park <= self.now.ms);
        let watched = self.facts.watcher(self.now).is_some();
        let seen = watched && !lapsed;
        self.line.first_job().filter(|(_, id)| seen && self.backoff(id).is_none()).cloned()
    }

    /// Who stands at the head of the line, and whose place that is; `None` if nobody can be served.
    pub(super) fn head(&mut self) -> Option<(u64, Option<Place>)> {
        let place = self.live_head();
        match (place, self.jobs_head()) {
            (place, Some((seq, _))) if place.as_ref().is_none_or(|place| seq < place.seq) => {
                Some((seq, None))
            }
            (place, _) => place.map(|place| (place.seq, Some(place))),
        }
    }

    /// The lock is offered for one accept window to whoever is at the head of its line and fits beside
    /// those who are in: one writer, the leading run of readers, as many as there are permits. A live
    /// place leaves the line (a dead one would block everybody); a job stays, and is parked unless a
    /// worker claims it.
    pub(super) fn move_on(&mut self) {
        for _ in 0..SCAN {
            let held = self.held();
            if held == Some(LockMode::Exclusive.wire_letter()) {
                return;
            }
            match self.head() {
                Some((_, Some(place))) => {
                    if !self.fits(place.mode) {
                        return;
                    }
                    self.offer_to(&place);
                    if place.mode == LockMode::Exclusive {
                        return;
                    }
                }
                _ if held.is_some() => return,
                Some((_, None)) => return self.offer_to_first_job(),
                None => {
                    // Hidden jobs on a free lock: a worker looks when it comes, or when the backoff is
                    // over.
                    if let Some((_, first)) = self.line.first_job() {
                        self.arm(self.backoff(first).unwrap_or(self.now.ms));
                    }
                    return;
                }
            }
        }
    }

    fn offer_to(&mut self, place: &Place) {
        let until = self.accept_until();
        self.line.drop_place(place);
        self.line.put(Member::offered(place.mode, &place.me), until);
        self.tell(place.me.node(), WakeupMessage::Offer(place.me.clone()));
        if !self.line.jobs.is_empty() {
            self.arm_by(until);
        }
    }

    fn offer_to_first_job(&mut self) {
        let until = self.accept_until();
        let Some((_, id)) = self.line.first_job().cloned() else {
            return;
        };
        self.line.put(Member::Job(id.clone()), until);
        self.line.park = Some(until);
        self.facts.due.set(self.key, self.now.ms);
        if let Some(node) = self.facts.watcher(self.now).cloned() {
            self.tell(&node, WakeupMessage::JobOffer(self.key.clone(), id));
        }
    }
}
