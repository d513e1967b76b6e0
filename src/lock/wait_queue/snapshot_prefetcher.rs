//! Prefetch of the queue snapshot during a hold.
//!
//! By default a snapshot allows 16 handovers within 10 ms. After that, the lock goes back to the
//! store, and the next waiter waits for a round trip while the lock is idle. If the work under a
//! lock takes milliseconds, that is a round trip for each hold or every other one. A
//! `Backend::refresh_grant` during the hold avoids it. It is sent if, by the average hold time, the
//! snapshot will be too old at the end of the hold, or if few fences are left.
//!
//! # Guarantees
//!
//! - Handovers follow the same rules as before, with the newer snapshot. Its age counts from before
//!   its request was sent.
//! - The newer snapshot counts only if no contender precedes the next local waiter. Therefore a
//!   waiter of another process is overtaken no more often, and for no longer, than one snapshot
//!   allows.
//! - The handover limit counts from before the request too: handovers during the call are
//!   subtracted from the new fences.
//! - A join that was announced during the call may be missing in the answer, so both are merged.
//! - The new fences are larger than all earlier ones. The first handover that has them uses them.
//! - The call takes nothing and changes no lease. So renewal, release and loss are independent of
//!   it, and it needs no undo. Its answer counts only while the same lease is registered for
//!   handovers.
//! - If the answer is that the lease is lost, there are no further handovers, and the end of the
//!   hold asks the store.
//!
//! At most one call is sent in each hold, and only if it can help a local waiter: none if there is
//! no local waiter, or if a contender of another process precedes it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    local_queue::{LocalQueue, LocalQueueId},
    local_queues::LocalQueues,
    queue_snapshot::{FenceRange, HandoverLimits, QueueSnapshot},
};
use crate::store::{LockToken, Store};

/// Shortest average hold with a prefetch; shorter ones end before the store can answer.
const MIN_PREFETCH_HOLD: Duration = Duration::from_micros(100);

/// Longest average hold with a prefetch, as a multiple of the handover window. Compared with longer
/// ones, a round trip is negligible.
const MAX_PREFETCH_HOLD_WINDOWS: u32 = 20;

/// Number of remaining fences at which a prefetch starts: enough for the holds until it is
/// answered.
const LOW_FENCES: u64 = 3;

/// Hold times and remaining fences of one local queue; they set the time of the next prefetch.
#[derive(Default)]
pub(super) struct SnapshotPrefetcher {
    limits: HandoverLimits,
    /// Start of the current hold.
    hold_started_at: Option<Instant>,
    /// Moving average; each new hold counts for a quarter.
    average_hold_time: Option<Duration>,
    /// Holds so far, each with one fence.
    hold_count: u64,
    /// Unused fences at the start of the current hold.
    fences_left: u64,
    /// Number of the last hold with a prefetch, sent or scheduled.
    last_prefetch_hold: Option<u64>,
    /// Token and fence of a prefetched answer, and the number of the hold that requested it.
    prefetched_fences: Option<(LockToken, u64, u64)>,
}

impl SnapshotPrefetcher {
    /// Starts the first hold after a grant of the store.
    pub(super) fn on_grant(&mut self, bounds: HandoverLimits) {
        (self.limits, self.fences_left, self.prefetched_fences) =
            (bounds, bounds.max_handovers, None);
        self.start_hold();
    }

    /// Starts the next hold after a handover.
    pub(super) fn on_handover(&mut self, fences: &FenceRange) {
        self.fences_left = fences.remaining();
        self.end_hold();
        self.start_hold();
    }

    fn start_hold(&mut self) {
        self.hold_started_at = Some(Instant::now());
        self.hold_count += 1;
    }

    pub(super) fn end_hold(&mut self) {
        if let Some(began) = self.hold_started_at.take() {
            let took = began.elapsed();
            self.average_hold_time =
                Some(self.average_hold_time.map_or(took, |usual| (usual * 3 + took) / 4));
        }
    }

    /// Switches to the prefetched fences, if an answer for this lease has arrived.
    pub(super) fn apply_prefetched_fences(&mut self, me: &LockToken, fences: &mut FenceRange) {
        if let Some((_, fence, asked)) = self.prefetched_fences.take_if(|(whose, ..)| whose == me) {
            fences.advance_to(fence, self.hold_count - asked);
        }
    }

    /// Returns the time at which to prefetch in the current hold, or `None` if it needs no
    /// prefetch.
    fn prefetch_due_at(&self, word: &QueueSnapshot) -> Option<Instant> {
        let HandoverLimits { max_handovers: most, window: within } = self.limits;
        let (began, usual) = (self.hold_started_at?, self.average_hold_time?);
        let worth =
            usual >= MIN_PREFETCH_HOLD && usual / MAX_PREFETCH_HOLD_WINDOWS <= within && most > 0;
        if !worth || self.last_prefetch_hold == Some(self.hold_count) {
            return None;
        }
        let end = began + usual;
        if end.saturating_duration_since(word.requested_at()) >= within / 5 * 4 {
            // Late, so that the answer serves more holds, but early enough to arrive before this
            // hold ends.
            return Some(end.checked_sub(within / 5 * 2).map_or(began, |at| at.max(began)));
        }
        (self.fences_left <= LOW_FENCES).then_some(began)
    }
}

/// Prefetch to be sent during one hold.
pub(super) struct PrefetchRequest {
    due_at: Instant,
    token: LockToken,
    hold_number: u64,
}

impl LocalQueue {
    /// Returns the prefetch to send during the current hold, at most one for each hold.
    pub(super) fn plan_prefetch(&mut self) -> Option<PrefetchRequest> {
        let word = self.snapshot.as_ref()?;
        let due = self.prefetcher.prefetch_due_at(word)?;
        let first = self.waiters.front()?;
        let [me] = &self.handover_tokens[..] else { return None };
        if !word.is_first(first.arrived_at) {
            return None;
        }
        let (me, turn) = (me.clone(), self.prefetcher.hold_count);
        self.prefetcher.last_prefetch_hold = Some(turn);
        Some(PrefetchRequest { due_at: due, token: me, hold_number: turn })
    }

    fn is_same_hold(&self, question: &PrefetchRequest) -> bool {
        self.handover_tokens.contains(&question.token)
            && self.prefetcher.hold_count == question.hold_number
    }
}

impl LocalQueues {
    /// Sends the prefetch when it is due, if the same hold is current then.
    pub(super) fn schedule_prefetch(
        self: &Arc<Self>,
        store: &Store,
        name: &LocalQueueId,
        question: Option<PrefetchRequest>,
    ) {
        if let Some(question) = question {
            let (lines, name, weak) = (Arc::downgrade(self), name.clone(), store.downgrade());
            store.spawn_background(async move {
                tokio::time::sleep_until(question.due_at).await;
                if let (Some(lines), Some(store)) = (lines.upgrade(), weak.upgrade()) {
                    lines.prefetch_snapshot(&store, &name, question).await;
                }
            });
        }
    }

    async fn prefetch_snapshot(
        &self,
        store: &Store,
        name: &LocalQueueId,
        question: PrefetchRequest,
    ) {
        if !self.queues.lock().get_mut(name).is_some_and(|line| line.is_same_hold(&question)) {
            return;
        }
        let PrefetchRequest { token: me, hold_number: turn, .. } = question;
        let sent = Instant::now();
        let answer = store.backend().refresh_grant(name.0.clone(), me.clone()).await;
        let mut lines = self.queues.lock();
        let Some(line) = lines.get_mut(name).filter(|line| line.handover_tokens.contains(&me))
        else {
            return;
        };
        match (answer, &mut line.snapshot) {
            (Ok(Some(still)), Some(word)) => {
                let later = word.merged_with_newer(QueueSnapshot::new(
                    sent,
                    still.server_us,
                    still.contenders,
                ));
                let first = line.waiters.front().map(|first| first.arrived_at);
                // Two holds may each have sent one, and the newer answer may have arrived first.
                let is_later = sent >= word.requested_at();
                // Without a waiter there must be no contender: a waiter that arrives now is younger
                // than all of them.
                if is_later && first.map_or(!later.has_contenders(), |came| later.is_first(came)) {
                    *word = later;
                    line.prefetcher.prefetched_fences = Some((me, still.fence, turn));
                } else {
                    word.add(still.contenders);
                }
            }
            (Ok(None), word) => *word = None,
            (Ok(Some(_)), None) | (Err(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Contenders, NodeId};

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn handovers_during_a_prefetch_use_up_its_fences() {
        let (bounds, me) =
            (HandoverLimits { max_handovers: 4, window: 10 * MS }, LockToken::new(&NodeId::new()));
        let (mut ahead, mut fences) =
            (SnapshotPrefetcher::default(), FenceRange::following(100, bounds));
        ahead.on_grant(bounds);
        let asked = ahead.hold_count;
        for fence in [101, 102] {
            assert_eq!(fences.take(), Some(fence));
            ahead.on_handover(&fences);
        }
        ahead.prefetched_fences = Some((me.clone(), 200, asked));
        ahead.apply_prefetched_fences(&LockToken::new(&NodeId::new()), &mut fences);
        assert_eq!(fences.remaining(), 2, "of another lease");
        ahead.apply_prefetched_fences(&me, &mut fences);
        assert_eq!([fences.take(), fences.take(), fences.take()], [Some(201), Some(202), None]);
        ahead.prefetched_fences = Some((me.clone(), 300, asked));
        ahead.hold_count = asked + 5;
        ahead.apply_prefetched_fences(&me, &mut fences);
        assert_eq!(fences.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn unbounded_window_does_not_overflow() {
        let bounds = HandoverLimits { max_handovers: 16, window: Duration::MAX };
        let mut ahead = SnapshotPrefetcher::default();
        ahead.on_grant(bounds);
        tokio::time::advance(MS).await;
        ahead.on_handover(&FenceRange::following(100, bounds));
        assert_eq!(
            ahead.prefetch_due_at(&QueueSnapshot::new(Instant::now(), 1_000_000, Contenders::NONE)),
            None
        );
    }
}
