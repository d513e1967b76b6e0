//! When a lock may pass from one guard of this process to the next without asking the store.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Contenders;

/// Bounds of local hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandoverLimits {
    /// H: most hand-overs after a word from the store.
    pub(crate) max_handovers: u64,
    /// T: how long after it.
    pub(crate) window: Duration,
}

impl Default for HandoverLimits {
    fn default() -> Self {
        Self { max_handovers: 16, window: Duration::from_millis(10) }
    }
}

/// The fences of a grant that are not used yet, each for one hand-over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FenceRange {
    last_used: u64,
    remaining: u64,
    limits: HandoverLimits,
}

impl FenceRange {
    /// Those after `fence`, as many as were asked for.
    pub(super) fn following(fence: u64, asked: HandoverLimits) -> Self {
        Self { last_used: fence, remaining: asked.max_handovers, limits: asked }
    }

    /// Those after the fence of a later word, of which `used` were given since it was asked for. Answers overtake each other:
    /// one whose fence is not above all that were given is of an earlier word.
    pub(super) fn advance_to(&mut self, fence: u64, used: u64) {
        if fence > self.last_used {
            (self.last_used, self.remaining) =
                (fence, self.limits.max_handovers.saturating_sub(used));
        }
    }

    pub(super) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The bounds they were asked for with.
    pub(super) fn limits(&self) -> HandoverLimits {
        self.limits
    }

    /// The next one.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.remaining = self.remaining.checked_sub(1)?;
        self.last_used += 1;
        Some(self.last_used)
    }
}

/// What the store has told of others in line.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct QueueSnapshot {
    /// Before the call was sent that brought it.
    requested_at: Instant,
    /// When it ran, as well as this process can know: half way between call and answer.
    executed_at: Instant,
    /// The server's time then, microseconds.
    server_us: u64,
    /// Their sequences are times of the server too.
    contenders: Contenders,
}

impl QueueSnapshot {
    /// Made when the answer is there.
    pub(in crate::lock) fn new(sent: Instant, server_us: u64, others: Contenders) -> Self {
        let ran = sent + sent.elapsed() / 2;
        Self { requested_at: sent, executed_at: ran, server_us, contenders: others }
    }

    /// The same, said later; this one was told meanwhile of those that joined.
    pub(super) fn merged_with_newer(&self, later: Self) -> Self {
        Self { contenders: self.contenders.merge(later.contenders), ..later }
    }

    /// When it was asked for.
    pub(super) fn requested_at(&self) -> Instant {
        self.requested_at
    }

    /// Whether nobody it tells of came before `came`.
    pub(super) fn is_first(&self, came: Instant) -> bool {
        self.precedes(came, self.contenders.first)
    }

    /// Somebody joined the line.
    pub(super) fn add(&mut self, who: Contenders) {
        self.contenders = self.contenders.merge(who);
    }

    pub(super) fn has_contenders(&self) -> bool {
        self.contenders != Contenders::NONE
    }

    /// Whether the word is fresh enough to act on, and no job it tells of came before `came`. Places of other processes
    /// may have.
    pub(super) fn allows_handover_to(&self, came: Instant, fences: &FenceRange) -> bool {
        !self.time_left(fences).is_zero() && self.precedes(came, self.contenders.job)
    }

    fn precedes(&self, came: Instant, seq: u64) -> bool {
        seq == 0 || self.server_time(came) < seq
    }

    /// For how long it can be acted on.
    fn time_left(&self, fences: &FenceRange) -> Duration {
        if fences.remaining == 0 {
            return Duration::ZERO;
        }
        fences.limits.window.saturating_sub(self.requested_at.elapsed())
    }

    /// A moment in the server's time, give or take half a round trip.
    pub(super) fn server_time(&self, moment: Instant) -> u64 {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match moment.checked_duration_since(self.executed_at) {
            Some(later) => self.server_us.saturating_add(us(later)),
            None => self.server_us.saturating_sub(us(self.executed_at - moment)),
        }
    }
}

/// Those of whom this process was told while the store was asked for the lock: the answer may have been made before they
/// joined, and come after the message.
#[derive(Debug, Clone, Copy)]
pub(super) struct JoinBuffer {
    joined: Contenders,
    /// When it was told the last time.
    last_at: Instant,
}

impl JoinBuffer {
    /// Somebody joined the line.
    pub(super) fn add(before: Option<Self>, who: Contenders) -> Self {
        Self { joined: before.map_or(who, |told| told.joined.merge(who)), last_at: Instant::now() }
    }

    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.last_at.elapsed() > age
    }

    /// What was told before the question is in the answer.
    pub(super) fn apply_to(self, word: &mut QueueSnapshot) {
        if self.last_at >= word.requested_at {
            word.add(self.joined);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn fences() -> FenceRange {
        FenceRange::following(100, HandoverLimits::default())
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_handed_the_lock_past_a_job_that_came_first() {
        let before = Instant::now();
        tokio::time::advance(5 * MS).await;
        let word = QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::from_job(998_000));
        assert!(word.allows_handover_to(before, &fences()), "5 ms before is 995 000");
        assert!(!word.allows_handover_to(before + 3 * MS, &fences()));
        let mut word = QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::NONE);
        assert!(word.allows_handover_to(Instant::now(), &fences()) && !word.has_contenders());
        word.add(Contenders::from_job(1_002_000));
        assert!(word.allows_handover_to(Instant::now() + MS, &fences()));
        assert!(!word.allows_handover_to(Instant::now() + 2 * MS, &fences()));
    }

    #[tokio::test(start_paused = true)]
    async fn places_that_came_first_are_passed_while_the_word_is_good() {
        let mut word =
            QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::from_waiter(990_000));
        word.add(Contenders::from_job(1_004_000));
        let came = Instant::now();
        assert!(word.allows_handover_to(came, &fences()) && !word.is_first(came));
        assert!(!word.allows_handover_to(came + 4 * MS, &fences()), "the job came first");
        let later = QueueSnapshot::new(came, 1_000_000, Contenders::from_waiter(1_002_000));
        assert!(word.merged_with_newer(later).has_contenders());
        assert!(!word.merged_with_newer(later).is_first(came), "what it was told of is remembered");
        tokio::time::advance(10 * MS).await;
        assert!(!word.allows_handover_to(came, &fences()), "but not for longer than T");
    }
}
