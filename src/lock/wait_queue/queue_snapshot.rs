//! Rules for handing a lock over inside one process without asking the store.
//!
//! The store answers each acquire with the contenders in its queue, kept here as a
//! [`QueueSnapshot`], and with a range of fences. While the snapshot is fresh, a guard may pass the
//! lock to the next local waiter with the next fence of the range. A handover never overtakes a job
//! of the snapshot. It may overtake waiters of other processes, within [`HandoverLimits`].

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Contenders;

/// Limits on local handovers after each snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandoverLimits {
    pub(crate) max_handovers: u64,
    /// Age at which a snapshot expires, counted from before its request was sent.
    pub(crate) window: Duration,
}

impl Default for HandoverLimits {
    fn default() -> Self {
        Self { max_handovers: 16, window: Duration::from_millis(10) }
    }
}

/// Unused fences of a grant, one for each handover.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FenceRange {
    last_used: u64,
    remaining: u64,
    limits: HandoverLimits,
}

impl FenceRange {
    /// Returns the range that follows a granted fence.
    pub(super) fn following(fence: u64, asked: HandoverLimits) -> Self {
        Self { last_used: fence, remaining: asked.max_handovers, limits: asked }
    }

    /// Switches to the range of a newer answer, less the `used` handovers made since it was
    /// requested.
    ///
    /// Answers can arrive out of order: a fence at or below the last one used belongs to an older
    /// request and is ignored.
    pub(super) fn advance_to(&mut self, fence: u64, used: u64) {
        if fence > self.last_used {
            (self.last_used, self.remaining) =
                (fence, self.limits.max_handovers.saturating_sub(used));
        }
    }

    pub(super) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the limits that the fences were requested with.
    pub(super) fn limits(&self) -> HandoverLimits {
        self.limits
    }

    /// Takes the next fence, or returns `None` if the range is exhausted.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.remaining = self.remaining.checked_sub(1)?;
        self.last_used += 1;
        Some(self.last_used)
    }
}

/// Snapshot of the store's wait queue: the oldest waiter and the oldest job of others.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct QueueSnapshot {
    /// Time before the request was sent; the snapshot's age counts from here.
    requested_at: Instant,
    /// Estimated time of execution on the server: halfway between request and answer.
    executed_at: Instant,
    /// Server time at `executed_at`, in microseconds.
    server_us: u64,
    /// Their sequence numbers are server times in microseconds too.
    contenders: Contenders,
}

impl QueueSnapshot {
    /// Creates a snapshot. To be called as soon as the answer has arrived.
    pub(in crate::lock) fn new(sent: Instant, server_us: u64, others: Contenders) -> Self {
        let ran = sent + sent.elapsed() / 2;
        Self { requested_at: sent, executed_at: ran, server_us, contenders: others }
    }

    /// Returns the newer snapshot, with the contenders that this one learned of in the meantime.
    pub(super) fn merged_with_newer(&self, later: Self) -> Self {
        Self { contenders: self.contenders.merge(later.contenders), ..later }
    }

    pub(super) fn requested_at(&self) -> Instant {
        self.requested_at
    }

    /// Returns true if a waiter that arrived at `came` precedes every contender.
    pub(super) fn is_first(&self, came: Instant) -> bool {
        self.precedes(came, self.contenders.first)
    }

    /// Adds a contender that was announced by a message.
    pub(super) fn add(&mut self, who: Contenders) {
        self.contenders = self.contenders.merge(who);
    }

    pub(super) fn has_contenders(&self) -> bool {
        self.contenders != Contenders::NONE
    }

    /// Returns true if the lock may be handed over to a waiter that arrived at `came`.
    ///
    /// The snapshot must be fresh, a fence must be left, and no job may be older. Waiters of other
    /// processes may be older.
    pub(super) fn allows_handover_to(&self, came: Instant, fences: &FenceRange) -> bool {
        !self.time_left(fences).is_zero() && self.precedes(came, self.contenders.job)
    }

    /// Sequence number 0 means that there is no such contender.
    fn precedes(&self, came: Instant, seq: u64) -> bool {
        seq == 0 || self.server_time(came) < seq
    }

    /// Returns how long handovers are still allowed; zero if the fences are used up.
    fn time_left(&self, fences: &FenceRange) -> Duration {
        if fences.remaining == 0 {
            return Duration::ZERO;
        }
        fences.limits.window.saturating_sub(self.requested_at.elapsed())
    }

    /// Converts a local instant to server time in microseconds, accurate to half a round trip.
    pub(super) fn server_time(&self, moment: Instant) -> u64 {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match moment.checked_duration_since(self.executed_at) {
            Some(later) => self.server_us.saturating_add(us(later)),
            None => self.server_us.saturating_sub(us(self.executed_at - moment)),
        }
    }
}

/// Joins that were announced while an acquire was in flight.
///
/// The store may have executed the acquire before a join and have announced the join before the
/// answer arrived, so the answer may lack it.
#[derive(Debug, Clone, Copy)]
pub(super) struct JoinBuffer {
    joined: Contenders,
    /// Time of the last announcement.
    last_at: Instant,
}

impl JoinBuffer {
    /// Adds a join, creating the buffer with the first one.
    pub(super) fn add(before: Option<Self>, who: Contenders) -> Self {
        Self { joined: before.map_or(who, |told| told.joined.merge(who)), last_at: Instant::now() }
    }

    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.last_at.elapsed() > age
    }

    /// Adds the joins to a snapshot. A snapshot that was requested after the last join contains
    /// them already.
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

    fn fence_range() -> FenceRange {
        FenceRange::following(100, HandoverLimits::default())
    }

    #[tokio::test(start_paused = true)]
    async fn handover_never_overtakes_an_earlier_job() {
        let before = Instant::now();
        tokio::time::advance(5 * MS).await;
        let word = QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::from_job(998_000));
        assert!(word.allows_handover_to(before, &fence_range()), "5 ms before is 995 000");
        assert!(!word.allows_handover_to(before + 3 * MS, &fence_range()));
        let mut word = QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::NONE);
        assert!(word.allows_handover_to(Instant::now(), &fence_range()) && !word.has_contenders());
        word.add(Contenders::from_job(1_002_000));
        assert!(word.allows_handover_to(Instant::now() + MS, &fence_range()));
        assert!(!word.allows_handover_to(Instant::now() + 2 * MS, &fence_range()));
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_waiters_are_overtaken_within_the_window_only() {
        let mut word =
            QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::from_waiter(990_000));
        word.add(Contenders::from_job(1_004_000));
        let came = Instant::now();
        assert!(word.allows_handover_to(came, &fence_range()) && !word.is_first(came));
        assert!(!word.allows_handover_to(came + 4 * MS, &fence_range()), "the job came first");
        let later = QueueSnapshot::new(came, 1_000_000, Contenders::from_waiter(1_002_000));
        assert!(word.merged_with_newer(later).has_contenders());
        assert!(!word.merged_with_newer(later).is_first(came), "what it was told of is remembered");
        tokio::time::advance(10 * MS).await;
        assert!(!word.allows_handover_to(came, &fence_range()), "but not for longer than T");
    }
}
