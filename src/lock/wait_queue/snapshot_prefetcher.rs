//! Word of the store that is asked for ahead, while the holder works.
//!
//! A word is good for T = 10 ms and H = 16 hand-overs. When both are over, the lock goes back to the store, and
//! whoever is next waits for a round trip with the lock idle. Where work under it takes milliseconds, that is one
//! trip for each or every other holder. So whoever's turn it is, the store is asked meanwhile, by [`GrantRefresh`], if by what
//! turns here have taken so far the word will be too old at the end of this one, or few fences are left.
//!
//! # Why that weakens nothing
//!
//! - What a hand-over may do is decided by the [rules](super::rules) as ever, with the younger word, which counts from
//!   before it was asked for.
//! - It counts only while nobody it tells of came before whoever is next here. So who waits at another process is
//!   passed by no more, and for no longer, than one word allows.
//! - H counts from before it was asked for too: hand-overs while it was under way are taken off the new fences.
//! - Who joined while it was under way may have been told of before the answer came: both are believed.
//! - Its fences are larger than all before, and are used from the first hand-over that has them.
//! - It holds nothing and changes no lease, so renewal, release and loss need not know of it, and there is no undo. Its
//!   answer counts only while the same lease has the turn.
//! - "Lost": nothing is handed on any more, so the end of the turn asks the store.
//!
//! At most one is asked for in a turn, and only for those who could be next: none for a lock that nobody of this
//! process waits for, nor where somebody of another one comes first.
//!
//! [`GrantRefresh`]: crate::store::Still

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    local_queue::{LocalQueue, LocalQueueId},
    local_queues::LocalQueues,
    queue_snapshot::{FenceRange, HandoverLimits, QueueSnapshot},
};
use crate::store::{LockToken, Store};

/// Turns shorter than this end before the store could answer.
const MIN_PREFETCH_HOLD: Duration = Duration::from_micros(100);

/// Beside turns longer than so many T, a round trip is nothing.
const MAX_PREFETCH_HOLD_WINDOWS: u32 = 20;

/// So few fences are few: while those who have them work, the answer comes.
const LOW_FENCES: u64 = 3;

/// What is known of the turns of a line, to ask in time.
#[derive(Default)]
pub(super) struct SnapshotPrefetcher {
    limits: HandoverLimits,
    /// When the turn began that is on.
    hold_started_at: Option<Instant>,
    /// How long turns take, a moving average.
    average_hold_time: Option<Duration>,
    /// Turns so far, each with one fence.
    hold_count: u64,
    /// Fences left to the turn that is on.
    fences_left: u64,
    /// The turn in which the store was asked, or will be.
    last_prefetch_hold: Option<u64>,
    /// The fence of a word that has come, whose lease it is, and how many turns there had been when it was asked for.
    prefetched_fences: Option<(LockToken, u64, u64)>,
}

impl SnapshotPrefetcher {
    /// A grant of the store.
    pub(super) fn on_grant(&mut self, bounds: HandoverLimits) {
        (self.limits, self.fences_left, self.prefetched_fences) =
            (bounds, bounds.max_handovers, None);
        self.start_hold();
    }

    /// A turn of this process follows another one.
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

    /// The fences of a later word, if it has come.
    pub(super) fn apply_prefetched_fences(&mut self, me: &LockToken, fences: &mut FenceRange) {
        if let Some((_, fence, asked)) = self.prefetched_fences.take_if(|(whose, ..)| whose == me) {
            fences.advance_to(fence, self.hold_count - asked);
        }
    }

    /// When the store should be asked in the turn that is on.
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
            // Late, so that it is good for more turns, and early enough to be there at the end of this one.
            return Some(end.checked_sub(within / 5 * 2).map_or(began, |at| at.max(began)));
        }
        (self.fences_left <= LOW_FENCES).then_some(began)
    }
}

/// To be put to the store in one turn.
pub(super) struct PrefetchRequest {
    due_at: Instant,
    token: LockToken,
    hold_number: u64,
}

impl LocalQueue {
    /// What the store should be asked in the turn that is on.
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
    /// Puts it when it is due, if that turn is on then.
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
                // Two turns may each have asked, and the younger answer be here already.
                let is_later = sent >= word.requested_at();
                // Whoever comes here now came after all that it tells of.
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
    async fn hand_overs_while_it_was_under_way_are_taken_off() {
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
    async fn no_bound_is_too_great() {
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
