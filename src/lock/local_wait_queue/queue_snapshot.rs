//! Queue snapshot, handover limits and spare fences: the rules for handing a lock over inside one
//! process without asking the store.
//!
//! The store answers each acquire with the contenders in its queue, kept here as a
//! [`QueueSnapshot`], and with a range of fences. While the snapshot is recent, a guard may pass
//! the lock to the next local waiter with the next fence of the range. A handover never overtakes a
//! job of the snapshot. It may overtake waiters of other processes, within [`HandoverLimits`].

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
    pub(super) fn following(fence: u64, limits: HandoverLimits) -> Self {
        Self { last_used: fence, remaining: limits.max_handovers, limits }
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
    pub(in crate::lock) fn new(
        requested_at: Instant,
        server_us: u64,
        contenders: Contenders,
    ) -> Self {
        let executed_at = requested_at + requested_at.elapsed() / 2;
        Self { requested_at, executed_at, server_us, contenders }
    }

    /// Returns the newer snapshot, with the contenders that this one learned of in the meantime.
    pub(super) fn merged_with_newer(&self, newer: Self) -> Self {
        Self { contenders: self.contenders.merge(newer.contenders), ..newer }
    }

    pub(super) fn requested_at(&self) -> Instant {
        self.requested_at
    }

    /// Returns true if a waiter that arrived at `arrived_at` precedes every contender.
    pub(super) fn is_first(&self, arrived_at: Instant) -> bool {
        self.precedes(arrived_at, self.contenders.first)
    }

    /// Adds a contender that was announced by a message.
    pub(super) fn add(&mut self, joined: Contenders) {
        self.contenders = self.contenders.merge(joined);
    }

    pub(super) fn has_contenders(&self) -> bool {
        self.contenders != Contenders::NONE
    }

    /// Returns true if the lock may be handed over to a waiter that arrived at `arrived_at`.
    ///
    /// The snapshot must be recent, a fence must remain, and no job may be older. Waiters of other
    /// processes may be older.
    pub(super) fn allows_handover_to(&self, arrived_at: Instant, fences: &FenceRange) -> bool {
        !self.handover_time_remaining(fences).is_zero()
            && self.precedes(arrived_at, self.contenders.job)
    }

    /// Sequence number 0 means that there is no such contender.
    fn precedes(&self, arrived_at: Instant, sequence: u64) -> bool {
        sequence == 0 || self.server_time(arrived_at) < sequence
    }

    /// Returns how long handovers are still allowed; zero if the fences are used up.
    fn handover_time_remaining(&self, fences: &FenceRange) -> Duration {
        if fences.remaining == 0 {
            return Duration::ZERO;
        }
        fences.limits.window.saturating_sub(self.requested_at.elapsed())
    }

    /// Converts a local instant to server time in microseconds, accurate to half a round trip.
    pub(super) fn server_time(&self, instant: Instant) -> u64 {
        let to_micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match instant.checked_duration_since(self.executed_at) {
            Some(elapsed) => self.server_us.saturating_add(to_micros(elapsed)),
            None => self.server_us.saturating_sub(to_micros(self.executed_at - instant)),
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
        let earlier = Instant::now();
        tokio::time::advance(5 * MS).await;
        let snapshot = QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::from_job(998_000));
        assert!(snapshot.allows_handover_to(earlier, &fence_range()), "5 ms before is 995 000");
        assert!(!snapshot.allows_handover_to(earlier + 3 * MS, &fence_range()));
        let mut snapshot = QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::NONE);
        assert!(
            snapshot.allows_handover_to(Instant::now(), &fence_range())
                && !snapshot.has_contenders()
        );
        snapshot.add(Contenders::from_job(1_002_000));
        assert!(snapshot.allows_handover_to(Instant::now() + MS, &fence_range()));
        assert!(!snapshot.allows_handover_to(Instant::now() + 2 * MS, &fence_range()));
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_waiters_are_overtaken_within_the_window_only() {
        let mut snapshot =
            QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::from_waiter(990_000));
        snapshot.add(Contenders::from_job(1_004_000));
        let arrived_at = Instant::now();
        assert!(
            snapshot.allows_handover_to(arrived_at, &fence_range())
                && !snapshot.is_first(arrived_at)
        );
        assert!(
            !snapshot.allows_handover_to(arrived_at + 4 * MS, &fence_range()),
            "the job came first"
        );
        let newer = QueueSnapshot::new(arrived_at, 1_000_000, Contenders::from_waiter(1_002_000));
        assert!(snapshot.merged_with_newer(newer).has_contenders());
        assert!(
            !snapshot.merged_with_newer(newer).is_first(arrived_at),
            "the announced join is in the snapshot"
        );
        tokio::time::advance(10 * MS).await;
        assert!(
            !snapshot.allows_handover_to(arrived_at, &fence_range()),
            "but not for longer than T"
        );
    }
}
