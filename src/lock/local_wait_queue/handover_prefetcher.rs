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
    local_queue::LocalQueue,
    local_queue_map::LocalQueueId,
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
pub(super) struct HandoverPrefetcher {
    limits: HandoverLimits,
    /// Start of the current hold.
    hold_started_at: Option<Instant>,
    /// Moving average; each new hold counts for a quarter.
    average_hold_time: Option<Duration>,
    /// Holds so far, each with one fence.
    hold_count: u64,
    /// Unused fences at the start of the current hold.
    remaining_fences: u64,
    /// Number of the last hold with a prefetch, sent or scheduled.
    last_prefetch_hold: Option<u64>,
    prefetched_fences: Option<PrefetchedFences>,
}

/// Spare fences of a prefetched answer that no handover has used yet.
struct PrefetchedFences {
    token: LockToken,
    /// Fence before the first spare one.
    fence: u64,
    /// Number of the hold that requested them.
    hold_number: u64,
}

impl HandoverPrefetcher {
    /// Starts the first hold after a grant of the store.
    pub(super) fn on_grant(&mut self, limits: HandoverLimits) {
        (self.limits, self.remaining_fences, self.prefetched_fences) =
            (limits, limits.max_handovers, None);
        self.start_hold();
    }

    /// Starts the next hold after a handover.
    pub(super) fn on_handover(&mut self, fences: &FenceRange) {
        self.remaining_fences = fences.remaining();
        self.end_hold();
        self.start_hold();
    }

    fn start_hold(&mut self) {
        self.hold_started_at = Some(Instant::now());
        self.hold_count += 1;
    }

    pub(super) fn end_hold(&mut self) {
        if let Some(started_at) = self.hold_started_at.take() {
            let hold_time = started_at.elapsed();
            self.average_hold_time = Some(
                self.average_hold_time.map_or(hold_time, |average| (average * 3 + hold_time) / 4),
            );
        }
    }

    /// Switches to the prefetched fences, if an answer for this lease has arrived.
    pub(super) fn apply_prefetched_fences(&mut self, token: &LockToken, fences: &mut FenceRange) {
        if let Some(prefetched) =
            self.prefetched_fences.take_if(|prefetched| prefetched.token == *token)
        {
            fences.advance_to(prefetched.fence, self.hold_count - prefetched.hold_number);
        }
    }

    /// Returns the time at which to prefetch in the current hold, or `None` if it needs no
    /// prefetch.
    fn prefetch_due_at(&self, snapshot: &QueueSnapshot) -> Option<Instant> {
        let HandoverLimits { max_handovers, window } = self.limits;
        let (started_at, average) = (self.hold_started_at?, self.average_hold_time?);
        let is_worthwhile = average >= MIN_PREFETCH_HOLD
            && average / MAX_PREFETCH_HOLD_WINDOWS <= window
            && max_handovers > 0;
        if !is_worthwhile || self.last_prefetch_hold == Some(self.hold_count) {
            return None;
        }
        let expected_end = started_at + average;
        if expected_end.saturating_duration_since(snapshot.requested_at()) >= window / 5 * 4 {
            // Late, so that the answer serves more holds, but early enough to arrive before this
            // hold ends.
            return Some(
                expected_end
                    .checked_sub(window / 5 * 2)
                    .map_or(started_at, |due_at| due_at.max(started_at)),
            );
        }
        (self.remaining_fences <= LOW_FENCES).then_some(started_at)
    }
}

/// Prefetch to be sent during one hold.
pub(super) struct PlannedPrefetch {
    due_at: Instant,
    token: LockToken,
    hold_number: u64,
}

impl LocalQueue {
    /// Returns the prefetch to send during the current hold, at most one for each hold.
    pub(super) fn plan_prefetch(&mut self) -> Option<PlannedPrefetch> {
        let snapshot = self.snapshot.as_ref()?;
        let due_at = self.prefetcher.prefetch_due_at(snapshot)?;
        let first_waiter = self.waiters.front()?;
        let [token] = &self.handover_tokens[..] else { return None };
        if !snapshot.is_first(first_waiter.arrived_at) {
            return None;
        }
        let (token, hold_number) = (token.clone(), self.prefetcher.hold_count);
        self.prefetcher.last_prefetch_hold = Some(hold_number);
        Some(PlannedPrefetch { due_at, token, hold_number })
    }

    fn is_same_hold(&self, prefetch: &PlannedPrefetch) -> bool {
        self.handover_tokens.contains(&prefetch.token)
            && self.prefetcher.hold_count == prefetch.hold_number
    }
}

impl LocalQueues {
    /// Sends the prefetch when it is due, if the same hold is current then.
    pub(super) fn schedule_prefetch(
        self: &Arc<Self>,
        store: &Store,
        queue_id: &LocalQueueId,
        prefetch: Option<PlannedPrefetch>,
    ) {
        if let Some(prefetch) = prefetch {
            let (queues, queue_id, weak_store) =
                (Arc::downgrade(self), queue_id.clone(), store.downgrade());
            store.spawn_background(async move {
                tokio::time::sleep_until(prefetch.due_at).await;
                if let (Some(queues), Some(store)) = (queues.upgrade(), weak_store.upgrade()) {
                    queues.prefetch_snapshot(&store, &queue_id, prefetch).await;
                }
            });
        }
    }

    async fn prefetch_snapshot(
        &self,
        store: &Store,
        queue_id: &LocalQueueId,
        prefetch: PlannedPrefetch,
    ) {
        if !self.queues.lock().get_mut(queue_id).is_some_and(|queue| queue.is_same_hold(&prefetch))
        {
            return;
        }
        let PlannedPrefetch { token, hold_number, .. } = prefetch;
        let requested_at = Instant::now();
        let result = store.backend().refresh_grant(queue_id.key.clone(), token.clone()).await;
        let mut queues = self.queues.lock();
        let Some(queue) =
            queues.get_mut(queue_id).filter(|queue| queue.handover_tokens.contains(&token))
        else {
            return;
        };
        match (result, &mut queue.snapshot) {
            (Ok(Some(refresh)), Some(snapshot)) => {
                let newer = snapshot.merged_with_newer(QueueSnapshot::new(
                    requested_at,
                    refresh.server_us,
                    refresh.contenders,
                ));
                let first_arrival = queue.waiters.front().map(|waiter| waiter.arrived_at);
                // Two holds may each have sent one, and the newer answer may have arrived first.
                let is_newest = requested_at >= snapshot.requested_at();
                // Without a waiter there must be no contender: a waiter that arrives now is younger
                // than all of them.
                let serves_local_first = first_arrival
                    .map_or(!newer.has_contenders(), |arrived_at| newer.is_first(arrived_at));
                if is_newest && serves_local_first {
                    *snapshot = newer;
                    queue.prefetcher.prefetched_fences =
                        Some(PrefetchedFences { token, fence: refresh.fence, hold_number });
                } else {
                    snapshot.add(refresh.contenders);
                }
            }
            (Ok(None), snapshot) => *snapshot = None,
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
        let (limits, token) =
            (HandoverLimits { max_handovers: 4, window: 10 * MS }, LockToken::new(&NodeId::new()));
        let (mut prefetcher, mut fences) =
            (HandoverPrefetcher::default(), FenceRange::following(100, limits));
        prefetcher.on_grant(limits);
        let requesting_hold = prefetcher.hold_count;
        for fence in [101, 102] {
            assert_eq!(fences.take(), Some(fence));
            prefetcher.on_handover(&fences);
        }
        prefetcher.prefetched_fences = Some(PrefetchedFences {
            token: token.clone(),
            fence: 200,
            hold_number: requesting_hold,
        });
        prefetcher.apply_prefetched_fences(&LockToken::new(&NodeId::new()), &mut fences);
        assert_eq!(fences.remaining(), 2, "of another lease");
        prefetcher.apply_prefetched_fences(&token, &mut fences);
        assert_eq!([fences.take(), fences.take(), fences.take()], [Some(201), Some(202), None]);
        prefetcher.prefetched_fences = Some(PrefetchedFences {
            token: token.clone(),
            fence: 300,
            hold_number: requesting_hold,
        });
        prefetcher.hold_count = requesting_hold + 5;
        prefetcher.apply_prefetched_fences(&token, &mut fences);
        assert_eq!(fences.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn unbounded_window_does_not_overflow() {
        let limits = HandoverLimits { max_handovers: 16, window: Duration::MAX };
        let mut prefetcher = HandoverPrefetcher::default();
        prefetcher.on_grant(limits);
        tokio::time::advance(MS).await;
        prefetcher.on_handover(&FenceRange::following(100, limits));
        assert_eq!(
            prefetcher.prefetch_due_at(&QueueSnapshot::new(
                Instant::now(),
                1_000_000,
                Contenders::NONE
            )),
            None
        );
    }
}
