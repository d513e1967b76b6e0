//! What a holder has: a lease of each node that voted for it, and the lock while these are a majority.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt as _},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::vote_request::{NodeVote, PendingVotes};
use crate::{
    key::Key,
    store::{HoldState, LockHold, LockLoss},
};

#[derive(Debug)]
pub(super) struct QuorumHold {
    pub(super) key: Key,
    pub(super) fence: u64,
    node_count: usize,
    /// When it is over, renewed or not.
    pub(super) ends_at: Instant,
    node_holds: Mutex<NodeHolds>,
    loss: OnceLock<LockLoss>,
    /// A node has come, or all is over.
    change_notify: Notify,
}

#[derive(Debug)]
struct NodeHolds {
    holds: BTreeMap<usize, LockHold>,
    /// In here, so that it is dropped with the rest, and not when a task gets to it.
    pending: PendingNodeCalls,
    /// Lost, or given back: nobody comes any more.
    is_closed: bool,
}

/// What nodes have still to answer. Dropped, each gives back what its node may yet grant.
#[derive(Debug, Default)]
struct PendingNodeCalls {
    votes: PendingVotes,
    /// Votes whose node is told the fence.
    fence_raises: FuturesUnordered<BoxFuture<'static, (usize, LockHold)>>,
}

/// See [`QuorumHold::next_event`].
pub(super) enum QuorumEvent {
    Vote(NodeVote),
    FenceRaised(usize, LockHold),
}

impl QuorumHold {
    pub(super) fn new(
        key: &Key,
        fence: u64,
        nodes: usize,
        max_hold: Duration,
        holds: BTreeMap<usize, LockHold>,
        votes: PendingVotes,
    ) -> Arc<Self> {
        let lock = key.log_hash();
        tracing::debug!(%lock, fence, nodes, votes = holds.len(), "quorum lock granted");
        Arc::new(Self {
            key: key.clone(),
            fence,
            node_count: nodes,
            ends_at: Instant::now() + max_hold,
            node_holds: Mutex::new(NodeHolds {
                holds,
                pending: PendingNodeCalls { votes, ..PendingNodeCalls::default() },
                is_closed: false,
            }),
            loss: OnceLock::new(),
            change_notify: Notify::new(),
        })
    }

    pub(super) fn majority(&self) -> usize {
        self.node_count / 2 + 1
    }

    /// Looks at each node's lease. Once it is lost it stays so, whatever comes back afterwards: what is left
    /// of it is given back, so that the next one need not wait for it.
    pub(super) fn check_loss(&self) -> Option<LockLoss> {
        // Who notices a loss tells it, and who is told may look here: not under the mutex.
        for facts in self.hold_states() {
            let _ = facts.loss();
        }
        let mut seats = self.node_holds.lock();
        if seats.is_closed {
            return self.loss.get().copied();
        }
        let ended = |(at, hold): (&usize, &LockHold)| Some((*at, hold.state().reported_loss()?));
        let ended: Vec<_> = seats.holds.iter().filter_map(ended).collect();
        let gone: Vec<_> = ended.iter().filter_map(|(at, _)| seats.holds.remove(at)).collect();
        if seats.holds.len() >= self.majority() {
            return None;
        }
        seats.is_closed = true;
        let loss = ended.last().map_or(LockLoss::Lapsed, |(_, loss)| *loss);
        let _ = self.loss.set(loss);
        let left = (std::mem::take(&mut seats.pending), std::mem::take(&mut seats.holds));
        drop(seats);
        self.change_notify.notify_waiters();
        tracing::warn!(lock = %self.key.log_hash(), ?loss, left = left.1.len(), "quorum lock lost");
        drop((gone, left));
        Some(loss)
    }

    /// Resolves when it is lost (with the reason) or given back.
    pub(super) async fn await_end(&self) -> Option<LockLoss> {
        loop {
            let mut changed = pin!(self.change_notify.notified());
            // Before the look: what is told from here on is not missed.
            changed.as_mut().enable();
            let loss = self.check_loss();
            if loss.is_some() || self.is_closed() {
                return loss;
            }
            let facts: Vec<_> = self.hold_states();
            let mut any: FuturesUnordered<_> =
                facts.iter().map(|facts| facts.wait_for_loss()).collect();
            tokio::select! {
                () = changed => {}
                _ = any.next() => {}
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.node_holds.lock().is_closed
    }

    pub(super) fn hold_states(&self) -> Vec<Arc<HoldState>> {
        self.node_holds.lock().holds.values().map(|hold| Arc::clone(hold.state())).collect()
    }

    #[cfg(test)]
    pub(super) fn facts_of(&self, at: usize) -> Option<Arc<HoldState>> {
        self.node_holds.lock().holds.get(&at).map(|hold| Arc::clone(hold.state()))
    }

    /// Until when a majority is sure, if no renewal succeeds from now on.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        let mut ends: Vec<_> = self.hold_states().iter().map(|facts| facts.valid_until()).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.majority() - 1).copied()
    }

    /// The nodes that have no lease for it, unless some are being asked.
    pub(super) fn missing_nodes(&self) -> Vec<usize> {
        let seats = self.node_holds.lock();
        if !seats.pending.votes.is_empty() || !seats.pending.fence_raises.is_empty() {
            return Vec::new();
        }
        (0..self.node_count).filter(|at| !seats.holds.contains_key(at)).collect()
    }

    /// Another vote is under way.
    pub(super) fn push_vote(&self, vote: BoxFuture<'static, NodeVote>) {
        let seats = self.node_holds.lock();
        if !seats.is_closed {
            seats.pending.votes.push(vote);
        }
    }

    /// The node of this vote is told the fence before it counts.
    pub(super) fn push_fence_raise(&self, raise: BoxFuture<'static, (usize, LockHold)>) {
        let seats = self.node_holds.lock();
        if !seats.is_closed {
            seats.pending.fence_raises.push(raise);
        }
    }

    /// What comes next of what is under way, for the one task that asks.
    pub(super) async fn next_event(&self) -> QuorumEvent {
        poll_fn(|cx| {
            let mut seats = self.node_holds.lock();
            if let Poll::Ready(Some(vote)) = seats.pending.votes.poll_next_unpin(cx) {
                return Poll::Ready(QuorumEvent::Vote(vote));
            }
            match seats.pending.fence_raises.poll_next_unpin(cx) {
                Poll::Ready(Some((at, hold))) => Poll::Ready(QuorumEvent::FenceRaised(at, hold)),
                // Where there are none, none comes but by this task.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// One more node. It was granted while there was a majority without it, or comes too late.
    pub(super) fn add_node(&self, at: usize, hold: LockHold) {
        // Before it counts: a majority that was lost meanwhile is not made whole by it.
        let _ = self.check_loss();
        let mut seats = self.node_holds.lock();
        if seats.is_closed {
            drop(seats);
            drop(hold);
            return;
        }
        let before = seats.holds.insert(at, hold);
        drop(seats);
        drop(before);
        self.change_notify.notify_waiters();
    }

    /// Ends it, and hands out what is to be given back; nothing, if it is over already.
    pub(super) fn close(&self) -> BTreeMap<usize, LockHold> {
        let mut seats = self.node_holds.lock();
        seats.is_closed = true;
        let (under_way, holds) =
            (std::mem::take(&mut seats.pending), std::mem::take(&mut seats.holds));
        drop(seats);
        drop(under_way);
        self.change_notify.notify_waiters();
        holds
    }
}
