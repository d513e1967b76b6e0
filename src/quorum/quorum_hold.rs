//! `QuorumHold`: leases of the nodes that voted for a grant; the lock is held while they are a
//! majority.

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
    store::{HoldState, LockLoss, OwnedHold},
};

/// Lock that a majority of nodes holds.
#[derive(Debug)]
pub(super) struct QuorumHold {
    pub(super) key: Key,
    pub(super) fence: u64,
    node_count: usize,
    /// End of `max_hold`, even if the leases are renewed.
    pub(super) ends_at: Instant,
    node_holds: Mutex<NodeHolds>,
    loss: OnceLock<LockLoss>,
    /// Notified when a node is added, and when the hold ends.
    change_notify: Notify,
}

#[derive(Debug)]
struct NodeHolds {
    holds: BTreeMap<usize, OwnedHold>,
    /// In this struct, so that the calls are dropped with the leases and not only when a task runs.
    pending: PendingNodeCalls,
    /// Lost or released: no node is added any more.
    is_closed: bool,
}

/// Calls in flight. If one is dropped, a grant that its node may still make is released.
#[derive(Debug, Default)]
struct PendingNodeCalls {
    votes: PendingVotes,
    /// Nodes that have voted, with a call in flight that raises their fence.
    fence_raises: FuturesUnordered<BoxFuture<'static, (usize, OwnedHold)>>,
}

/// Returns true if a store of these holds shows names in log records.
fn shows_log_names(holds: &BTreeMap<usize, OwnedHold>) -> bool {
    holds.values().any(|hold| hold.store().shows_log_names())
}

/// Result of [`QuorumHold::next_event`].
pub(super) enum QuorumEvent {
    Vote(NodeVote),
    FenceRaised { node_index: usize, hold: OwnedHold },
}

impl QuorumHold {
    pub(super) fn new(
        key: &Key,
        fence: u64,
        node_count: usize,
        max_hold: Duration,
        holds: BTreeMap<usize, OwnedHold>,
        votes: PendingVotes,
    ) -> Arc<Self> {
        let lock = key.log_name(shows_log_names(&holds));
        tracing::debug!(%lock, fence, nodes = node_count, votes = holds.len(), "quorum lock granted");
        Arc::new(Self {
            key: key.clone(),
            fence,
            node_count,
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

    /// Checks each node's lease, and returns the loss if fewer than a majority are left.
    ///
    /// A loss is final, even if nodes return afterwards. The remaining leases are released, so that
    /// the next holder need not wait for them.
    pub(super) fn check_loss(&self) -> Option<LockLoss> {
        // Not under the mutex: a detected loss is reported at once, and its receiver may call this
        // function.
        for state in self.hold_states() {
            let _ = state.loss();
        }
        let mut node_holds = self.node_holds.lock();
        if node_holds.is_closed {
            return self.loss.get().copied();
        }
        let reported_loss = |(node_index, hold): (&usize, &OwnedHold)| {
            Some((*node_index, hold.state().reported_loss()?))
        };
        let losses: Vec<_> = node_holds.holds.iter().filter_map(reported_loss).collect();
        let lost_holds: Vec<_> =
            losses.iter().filter_map(|(index, _)| node_holds.holds.remove(index)).collect();
        if node_holds.holds.len() >= self.majority() {
            return None;
        }
        node_holds.is_closed = true;
        let loss = losses.last().map_or(LockLoss::Lapsed, |(_, loss)| *loss);
        let _ = self.loss.set(loss);
        let shows_lost_names = lost_holds.iter().any(|hold| hold.store().shows_log_names());
        let pending = std::mem::take(&mut node_holds.pending);
        let remaining_holds = std::mem::take(&mut node_holds.holds);
        drop(node_holds);
        self.change_notify.notify_waiters();
        let lock = self.key.log_name(shows_log_names(&remaining_holds) || shows_lost_names);
        tracing::warn!(%lock, ?loss, left = remaining_holds.len(), "quorum lock lost");
        drop((lost_holds, pending, remaining_holds));
        Some(loss)
    }

    /// Resolves when the lock is lost, with the reason, or released.
    pub(super) async fn await_end(&self) -> Option<LockLoss> {
        loop {
            let mut changed = pin!(self.change_notify.notified());
            // Enabled before the check, so that no later notification is missed.
            changed.as_mut().enable();
            let loss = self.check_loss();
            if loss.is_some() || self.is_closed() {
                return loss;
            }
            let states: Vec<_> = self.hold_states();
            let mut losses: FuturesUnordered<_> =
                states.iter().map(|state| state.wait_for_loss()).collect();
            tokio::select! {
                () = changed => {}
                _ = losses.next() => {}
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
    pub(super) fn hold_state_of(&self, node_index: usize) -> Option<Arc<HoldState>> {
        self.node_holds.lock().holds.get(&node_index).map(|hold| Arc::clone(hold.state()))
    }

    /// Returns the time until which a majority is certain if no renewal succeeds from now on.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        let mut ends: Vec<_> = self.hold_states().iter().map(|state| state.valid_until()).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.majority() - 1).copied()
    }

    /// Returns the nodes without a lease; none while a call to a node is in flight.
    pub(super) fn missing_nodes(&self) -> Vec<usize> {
        let node_holds = self.node_holds.lock();
        if !node_holds.pending.votes.is_empty() || !node_holds.pending.fence_raises.is_empty() {
            return Vec::new();
        }
        (0..self.node_count).filter(|index| !node_holds.holds.contains_key(index)).collect()
    }

    /// Adds a vote that is in flight.
    pub(super) fn push_vote(&self, vote: BoxFuture<'static, NodeVote>) {
        let node_holds = self.node_holds.lock();
        if !node_holds.is_closed {
            node_holds.pending.votes.push(vote);
        }
    }

    /// Adds a call that raises the fence of a node, before its vote counts.
    pub(super) fn push_fence_raise(&self, raise: BoxFuture<'static, (usize, OwnedHold)>) {
        let node_holds = self.node_holds.lock();
        if !node_holds.is_closed {
            node_holds.pending.fence_raises.push(raise);
        }
    }

    /// Returns the next completed call. For use by one task only.
    pub(super) async fn next_event(&self) -> QuorumEvent {
        poll_fn(|cx| {
            let mut node_holds = self.node_holds.lock();
            if let Poll::Ready(Some(vote)) = node_holds.pending.votes.poll_next_unpin(cx) {
                return Poll::Ready(QuorumEvent::Vote(vote));
            }
            match node_holds.pending.fence_raises.poll_next_unpin(cx) {
                Poll::Ready(Some((node_index, hold))) => {
                    Poll::Ready(QuorumEvent::FenceRaised { node_index, hold })
                }
                // With no calls in flight, only the task that polls this adds new ones.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Adds a node that voted in addition to the majority, or drops its lease if the lock has
    /// ended.
    pub(super) fn add_node(&self, node_index: usize, hold: OwnedHold) {
        // Before the node counts: it must not complete a majority that was lost in the meantime.
        let _ = self.check_loss();
        let mut node_holds = self.node_holds.lock();
        if node_holds.is_closed {
            drop(node_holds);
            drop(hold);
            return;
        }
        let replaced = node_holds.holds.insert(node_index, hold);
        drop(node_holds);
        drop(replaced);
        self.change_notify.notify_waiters();
    }

    /// Ends the hold and returns the leases to release; none if it has ended already.
    pub(super) fn close(&self) -> BTreeMap<usize, OwnedHold> {
        let mut node_holds = self.node_holds.lock();
        node_holds.is_closed = true;
        let (pending, holds) =
            (std::mem::take(&mut node_holds.pending), std::mem::take(&mut node_holds.holds));
        drop(node_holds);
        drop(pending);
        self.change_notify.notify_waiters();
        holds
    }
}
