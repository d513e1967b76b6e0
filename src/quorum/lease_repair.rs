//! `LeaseRepair`: background task of a quorum hold, which counts late votes and asks nodes without
//! a lease again.
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
pub(super) fn spawn_repair(vote_request: &VoteRequest, hold: &Arc<QuorumHold>) {
    let Some(first_node) = vote_request.nodes.first() else { return };
    // Dropping the guard ends the lock, even if this task still has a reference to the hold.
    let repair = LeaseRepair { vote_request: vote_request.clone(), hold: Arc::clone(hold) };
    first_node.spawn_background(repair.run());
}

/// Task of one hold.
struct LeaseRepair {
    vote_request: VoteRequest,
    hold: Arc<QuorumHold>,
}

impl LeaseRepair {
    async fn run(self) {
        let interval = self.vote_request.terms.lease / 3;
        let mut next_repair = Instant::now() + interval;
        let mut ended = pin!(self.hold.await_end());
        loop {
            tokio::select! {
                _ = &mut ended => return,
                event = self.hold.next_event() => match event {
                    QuorumEvent::Vote(vote) => self.handle_vote(vote),
                    QuorumEvent::FenceRaised { node_index, hold } => self.hold.add_node(node_index, hold),
                },
                () = sleep_until(next_repair) => {
                    next_repair = Instant::now() + interval;
                    self.request_missing_votes();
                }
            }
        }
    }

    fn handle_vote(&self, NodeVote { node_index, outcome }: NodeVote) {
        // A node that refuses is asked again later.
        if let Ok(hold) = outcome {
            self.hold.push_fence_raise(self.vote_request.raise_node_fence(
                node_index,
                hold,
                self.hold.fence,
            ));
        }
    }

    /// Asks the nodes that had no lease at first, and those that have lost it.
    fn request_missing_votes(&self) {
        let terms = &self.vote_request.terms;
        let remaining = self.hold.ends_at.saturating_duration_since(Instant::now());
        if terms.renews && remaining >= terms.lease {
            let terms = LeaseTerms { max_hold: remaining, ..terms.clone() };
            for node_index in self.hold.missing_nodes() {
                self.hold.push_vote(self.vote_request.request_vote(node_index, &terms));
            }
        }
    }
}
