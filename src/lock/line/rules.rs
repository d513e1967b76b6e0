//! When a lock may pass from one guard of this process to the next without asking the store.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Contenders;

/// Bounds of local hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandOver {
    /// H: most hand-overs after a word from the store.
    pub(crate) most: u64,
    /// T: how long after it.
    pub(crate) within: Duration,
}

impl Default for HandOver {
    fn default() -> Self {
        Self { most: 16, within: Duration::from_millis(10) }
    }
}

/// The fences of a grant that are not used yet, each for one hand-over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fences {
    last: u64,
    left: u64,
    asked: HandOver,
}

impl Fences {
    /// Those after `fence`, as many as were asked for.
    pub(super) fn after(fence: u64, asked: HandOver) -> Self {
        Self { last: fence, left: asked.most, asked }
    }

    /// Those after the fence of a later word, of which `used` were given since it was asked for. Answers overtake each other:
    /// one whose fence is not above all that were given is of an earlier word.
    pub(super) fn anew(&mut self, fence: u64, used: u64) {
        if fence > self.last {
            (self.last, self.left) = (fence, self.asked.most.saturating_sub(used));
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The bounds they were asked for with.
    pub(super) fn asked(&self) -> HandOver {
        self.asked
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.last += 1;
        Some(self.last)
    }
}

/// What the store has told of others in line.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct Word {
    /// Before the call was sent that brought it.
    sent: Instant,
    /// When it ran, as well as this process can know: half way between call and answer.
    ran: Instant,
    /// The server's time then, microseconds.
    server_us: u64,
    /// Their sequences are times of the server too.
    others: Contenders,
}

impl Word {
    /// Made when the answer is there.
    pub(in crate::lock) fn new(sent: Instant, server_us: u64, others: Contenders) -> Self {
        let ran = sent + sent.elapsed() / 2;
        Self { sent, ran, server_us, others }
    }

    /// The same, said later; this one was told meanwhile of those that joined.
    pub(super) fn followed_by(&self, later: Self) -> Self {
        Self { others: self.others.merge(later.others), ..later }
    }

    /// When it was asked for.
    pub(super) fn sent(&self) -> Instant {
        self.sent
    }

    /// Whether nobody it tells of came before `came`.
    pub(super) fn is_in_turn(&self, came: Instant) -> bool {
        self.is_before(came, self.others.first)
    }

    /// Somebody joined the line.
    pub(super) fn joined(&mut self, who: Contenders) {
        self.others = self.others.merge(who);
    }

    pub(super) fn others_wait(&self) -> bool {
        self.others != Contenders::NONE
    }

    /// Whether the word is fresh enough to act on, and no job it tells of came before `came`. Places of other processes
    /// may have.
    pub(super) fn allows(&self, came: Instant, fences: &Fences) -> bool {
        !self.good_for(fences).is_zero() && self.is_before(came, self.others.job)
    }

    fn is_before(&self, came: Instant, seq: u64) -> bool {
        seq == 0 || self.server_time(came) < seq
    }

    /// For how long it can be acted on.
    fn good_for(&self, fences: &Fences) -> Duration {
        if fences.left == 0 {
            return Duration::ZERO;
        }
        fences.asked.within.saturating_sub(self.sent.elapsed())
    }

    /// A moment in the server's time, give or take half a round trip.
    pub(super) fn server_time(&self, moment: Instant) -> u64 {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match moment.checked_duration_since(self.ran) {
            Some(later) => self.server_us.saturating_add(us(later)),
            None => self.server_us.saturating_sub(us(self.ran - moment)),
        }
    }
}

/// Those of whom this process was told while the store was asked for the lock: the answer may have been made before they
/// joined, and come after the message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    who: Contenders,
    /// When it was told the last time.
    at: Instant,
}

impl Told {
    /// Somebody joined the line.
    pub(super) fn joined(before: Option<Self>, who: Contenders) -> Self {
        Self { who: before.map_or(who, |told| told.who.merge(who)), at: Instant::now() }
    }

    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.at.elapsed() > age
    }

    /// What was told before the question is in the answer.
    pub(super) fn adds_to(self, word: &mut Word) {
        if self.at >= word.sent {
            word.joined(self.who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn fences() -> Fences {
        Fences::after(100, HandOver::default())
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_handed_the_lock_past_a_job_that_came_first() {
        let before = Instant::now();
        tokio::time::advance(5 * MS).await;
        let word = Word::new(Instant::now(), 1_000_000, Others::job(998_000));
        assert!(word.allows(before, &fences()), "5 ms before is 995 000");
        assert!(!word.allows(before + 3 * MS, &fences()));
        let mut word = Word::new(Instant::now(), 1_000_000, Others::NOBODY);
        assert!(word.allows(Instant::now(), &fences()) && !word.others_wait());
        word.joined(Others::job(1_002_000));
        assert!(word.allows(Instant::now() + MS, &fences()));
        assert!(!word.allows(Instant::now() + 2 * MS, &fences()));
    }

    #[tokio::test(start_paused = true)]
    async fn places_that_came_first_are_passed_while_the_word_is_good() {
        let mut word = Word::new(Instant::now(), 1_000_000, Others::place(990_000));
        word.joined(Others::job(1_004_000));
        let came = Instant::now();
        assert!(word.allows(came, &fences()) && !word.is_in_turn(came));
        assert!(!word.allows(came + 4 * MS, &fences()), "the job came first");
        let later = Word::new(came, 1_000_000, Others::place(1_002_000));
        assert!(word.followed_by(later).others_wait());
        assert!(!word.followed_by(later).is_in_turn(came), "what it was told of is remembered");
        tokio::time::advance(10 * MS).await;
        assert!(!word.allows(came, &fences()), "but not for longer than T");
    }
}
