//! The line of one lock: what `line.lua` is on Redis. Names and order of steps are the same there.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{
    ends::Expiring,
    post::Mail,
    shard::{Facts, Job, Now},
};
use crate::{
    key::Key,
    store::{
        backend::{ACCEPT_WINDOW, JobId, Mode, Token},
        hints::Hint,
    },
};

/// Rows that one step may look at: a bound on its running time, not on the line.
const SCAN: usize = 100;

/// Who stands in h: holders, and those who have been offered the lock; with the letter of their mode.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Member {
    Holds(&'static str, Token),
    Offered(&'static str, Token),
    Job(JobId),
}

impl Member {
    pub(super) fn holds(mode: Mode, me: &Token) -> Self {
        Self::Holds(mode.letter(), me.clone())
    }

    pub(super) fn offered(mode: Mode, me: &Token) -> Self {
        Self::Offered(mode.letter(), me.clone())
    }

    fn letter(&self) -> &'static str {
        match self {
            Self::Holds(letter, _) | Self::Offered(letter, _) => letter,
            Self::Job(_) => Mode::Exclusive.letter(),
        }
    }
}

/// A place in q, in its order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) deadline: u64,
    pub(super) me: Token,
    pub(super) mode: Mode,
}

/// The keys h, l, q and g of one lock.
#[derive(Default)]
pub(super) struct Line {
    /// h: mostly one member, so a list is enough. All are of one mode.
    holders: Vec<(Member, u64)>,
    /// When h ends: with its latest member ever, until it was empty.
    holders_end: u64,
    places: BTreeSet<Place>,
    places_end: u64,
    /// The fields '@<place>' of l.
    own: HashMap<Token, Place>,
    pub(super) jobs: BTreeSet<(u64, JobId)>,
    /// From when on the jobs are passed over, because the offer to them has lapsed.
    pub(super) park: Option<u64>,
    /// Until when the first job is in backoff.
    pub(super) back: Option<u64>,
    pub(super) bytes: u64,
}

impl Line {
    /// Drops what a key's TTL would have taken away by now.
    pub(super) fn expire(&mut self, now: Now) {
        if now.ms > self.holders_end {
            self.holders.clear();
        }
        if now.ms > self.places_end {
            self.places.clear();
            self.own.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.places.is_empty() && self.jobs.is_empty()
    }

    /// When nothing of it is left; `None` while jobs wait, which have no end.
    pub(super) fn end(&self) -> Option<u64> {
        let mut end = 0;
        if !self.holders.is_empty() {
            end = self.holders_end;
        }
        if !self.places.is_empty() {
            end = end.max(self.places_end);
        }
        self.jobs.is_empty().then_some(end)
    }

    pub(super) fn len(&self) -> u64 {
        (self.places.len() + self.jobs.len()) as u64
    }

    pub(super) fn first_job(&self) -> Option<&(u64, JobId)> {
        self.jobs.first()
    }

    /// From 1.
    pub(super) fn position(&self, seq: u64, id: &JobId) -> Option<u64> {
        let at = (seq, id.clone());
        let before = || self.jobs.range(..&at).count() as u64;
        self.jobs.contains(&at).then(|| before() + 1)
    }

    pub(super) fn deadline(&self, member: &Member) -> Option<u64> {
        let found = self.holders.iter().find(|(m, _)| m == member);
        found.map(|(_, deadline)| *deadline)
    }

    /// Takes a member out of h; true if it was there.
    pub(super) fn take(&mut self, member: &Member) -> bool {
        let before = self.holders.len();
        self.holders.retain(|(m, _)| m != member);
        self.holders.len() < before
    }

    pub(super) fn put(&mut self, member: Member, deadline: u64) {
        if self.holders.is_empty() {
            self.holders_end = 0;
        }
        match self.holders.iter_mut().find(|(m, _)| *m == member) {
            Some((_, old)) => *old = deadline,
            None => self.holders.push((member, deadline)),
        }
        self.holders_end = self.holders_end.max(deadline);
    }

    /// Moves the deadline of a live holder; false if it is none.
    pub(super) fn extend(&mut self, me: &Token, mode: Mode, now: Now, until: u64) -> bool {
        let member = Member::holds(mode, me);
        let live = self.deadline(&member).is_some_and(|end| end > now.ms);
        if live {
            self.put(member, until);
        }
        live
    }

    /// This nonce's place, if it has one.
    pub(super) fn place_of(&self, me: &Token) -> Option<Place> {
        self.own.get(me).cloned()
    }

    pub(super) fn add_place(&mut self, place: Place) {
        if self.places.is_empty() {
            self.places_end = 0;
        }
        self.places_end = self.places_end.max(place.deadline);
        self.own.insert(place.me.clone(), place.clone());
        self.places.insert(place);
    }

    pub(super) fn drop_place(&mut self, place: &Place) {
        self.places.remove(place);
        self.own.remove(&place.me);
    }
}

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
        self.now.after(ACCEPT_WINDOW)
    }

    pub(super) fn tell(&mut self, node: &str, hint: Hint) {
        let to = Some(node.into());
        self.post.push(Mail { to, hint });
    }

    pub(super) fn tell_all(&mut self, id: &JobId) {
        let hint = Hint::Job(id.clone());
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
    pub(super) fn fits(&mut self, mode: Mode) -> bool {
        match self.held() {
            None => true,
            Some(held) if held != mode.letter() => false,
            Some(_) => match mode {
                Mode::Exclusive => false,
                Mode::Shared => true,
                Mode::Permits(most) => self.line.holders.len() < most as usize,
            },
        }
    }

    /// What a request that was not let in is told: until when, and the length of the line.
    pub(super) fn busy_for(&mut self) -> (Duration, u64) {
        let mut until = self.held_until();
        if self.held() == Some(Mode::Permits(1).letter()) {
            until = self.line.holders.iter().map(|(_, deadline)| *deadline).min();
        }
        let left = until.unwrap_or_else(|| self.accept_until()).saturating_sub(self.now.ms);
        (Duration::from_millis(left.max(1)), self.line.len())
    }

    /// A fence above every fence ever given in this shard; the spare ones are the holder's too.
    pub(super) fn grant(&mut self, me: &Token, mode: Mode, lease: Duration, spare: u64) -> u64 {
        let fence = (self.facts.fence + 1).max(self.now.us);
        self.facts.fence = fence + spare;
        self.line.put(Member::holds(mode, me), self.now.after(lease));
        fence
    }

    /// Sets when a worker should look at this lock, and tells the watcher if it must wake sooner.
    pub(super) fn arm(&mut self, at: u64) {
        let first = self.facts.due.iter().next().map(|(first, _)| first);
        self.facts.due.set(self.key, at);
        let sooner = first.is_none_or(|first| at < first);
        if let Some(node) = self.facts.watcher(self.now).filter(|_| sooner).cloned() {
            self.tell(&node, Hint::Due(self.key.shard()));
        }
    }

    /// Tells the processes of all holders that somebody joined the line at this sequence.
    pub(super) fn tell_holders(&mut self, seq: u64) {
        for (member, _) in self.line.holders.iter().take(SCAN) {
            if let Member::Holds(_, me) = member {
                let to = Some(me.node().into());
                let hint = Hint::Line(self.key.clone(), seq);
                self.post.push(Mail { to, hint });
            }
        }
    }

    /// First place whose process may still be waiting.
    pub(super) fn live_head(&mut self) -> Option<Place> {
        for _ in 0..SCAN {
            let place = self.line.places.first()?.clone();
            if place.deadline > self.now.ms {
                return Some(place);
            }
            self.line.drop_place(&place);
        }
        None
    }

    /// First job, unless the jobs are passed over: an offer to them lapsed, the first one is in
    /// backoff, or no worker watches the shard.
    pub(super) fn jobs_head(&self) -> Option<(u64, JobId)> {
        let lapsed = self.line.park.is_some_and(|park| park <= self.now.ms);
        let waits = self.line.back.is_some_and(|back| back > self.now.ms);
        let watched = self.facts.watcher(self.now).is_some();
        let seen = watched && !lapsed && !waits;
        self.line.first_job().filter(|_| seen).cloned()
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
            if held == Some(Mode::Exclusive.letter()) {
                return;
            }
            match self.head() {
                Some((_, Some(place))) => {
                    if !self.fits(place.mode) {
                        return;
                    }
                    self.offer_to(&place);
                    if place.mode == Mode::Exclusive {
                        return;
                    }
                }
                _ if held.is_some() => return,
                Some((_, None)) => return self.offer_to_first_job(),
                None => {
                    // Hidden jobs on a free lock: a worker looks when it comes, or when the backoff is
                    // over.
                    if !self.line.jobs.is_empty() {
                        self.arm(self.line.back.unwrap_or(0).max(self.now.ms));
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
        self.tell(place.me.node(), Hint::Offer(place.me.clone()));
        if !self.line.jobs.is_empty() {
            self.arm(until);
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
            self.tell(&node, Hint::Work(self.key.clone(), id));
        }
    }

    /// Takes a job out of the line for good. The job itself keeps what the status tells.
    pub(super) fn end_job(&mut self, seq: u64, id: &JobId, bytes: u64) {
        // A backoff is the first job's own and ends with it.
        if self.line.first_job().is_some_and(|(_, first)| first == id) {
            self.line.back = None;
        }
        self.line.jobs.remove(&(seq, id.clone()));
        self.facts.jobs = self.facts.jobs.saturating_sub(1);
        self.facts.bytes = self.facts.bytes.saturating_sub(bytes);
        if self.line.jobs.is_empty() {
            self.facts.due.remove(self.key);
            (self.line.park, self.line.back, self.line.bytes) = (None, None, 0);
        } else {
            self.line.bytes = self.line.bytes.saturating_sub(bytes);
            self.facts.due.set(self.key, self.now.ms);
        }
    }
}
