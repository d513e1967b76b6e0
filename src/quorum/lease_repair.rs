//! Background task of a quorum hold: it counts late votes, and asks nodes without a lease again.
//!
//! It does not renew: each node's lease is renewed by the lease agent of its own store. If the
//! runtime of this task ends, a lock lasts for as long as the nodes that had voted for it.

use std::{pin::pin, sync::Arc};

use tokio::time::{Instant, sleep_until};

use super::{
    quorum_hold::{QuorumEvent, QuorumHold},
    vote_request::{NodeVote, VoteRequest},
};
use crate::store::LeaseTerms;

/// Starts the task, which ends with the lock.
pub(super) fn spawn_repair(asking: &VoteRequest, held: &Arc<QuorumHold>) {
    let Some(first) = asking.nodes.first() else { return };
    // Dropping the guard ends the lock, even if this task still has a reference to the hold.
    let tender = LeaseRepair { vote_request: asking.clone(), hold: Arc::clone(held) };
    first.spawn_background(tender.run());
}

struct LeaseRepair {
    vote_request: VoteRequest,
    hold: Arc<QuorumHold>,
}

impl LeaseRepair {
    async fn run(self) {
        let third = self.vote_request.terms.lease / 3;
        let mut next = Instant::now() + third;
        let mut ended = pin!(self.hold.await_end());
        loop {
            tokio::select! {
                _ = &mut ended => return,
                next = self.hold.next_event() => match next {
                    QuorumEvent::Vote(vote) => self.handle_vote(vote),
                    QuorumEvent::FenceRaised(at, hold) => self.hold.add_node(at, hold),
                },
                () = sleep_until(next) => {
                    next = Instant::now() + third;
                    self.request_missing_votes();
                }
            }
        }
    }

    fn handle_vote(&self, (at, answer): NodeVote) {
        // A node that refuses is asked again later.
        if let Ok(hold) = answer {
            self.hold.push_fence_raise(self.vote_request.raise_node_fence(
                at,
                hold,
                self.hold.fence,
            ));
        }
    }

    /// Asks the nodes that had no lease at first, and those that have lost it.
    fn request_missing_votes(&self) {
        let terms = &self.vote_request.terms;
        let left = self.hold.ends_at.saturating_duration_since(Instant::now());
        if terms.renews && left >= terms.lease {
            let terms = LeaseTerms { max_hold: left, ..terms.clone() };
            for at in self.hold.missing_nodes() {
                self.hold.push_vote(self.vote_request.request_vote(at, &terms));
            }
        }
    }
}
