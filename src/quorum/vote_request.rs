//! `VoteRequest`: a round of votes. All nodes are asked at once, a majority decides, and its fences
//! are raised.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{
    future::{BoxFuture, join_all},
    stream::{FuturesUnordered, StreamExt as _},
};
use tokio::time::Instant;

use super::quorum_hold::QuorumHold;
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{AcquireError, LockBusy},
    store::{
        AcquireCommand, AcquireReply, GrantAttempt, HoldState, LeaseTerms, LockMode, OwnedHold,
        SPARE_FENCES, Store,
    },
};

/// Nodes, key and terms of a round.
#[derive(Debug, Clone)]
pub(super) struct VoteRequest {
    pub(super) nodes: Arc<[Store]>,
    pub(super) key: Key,
    pub(super) terms: LeaseTerms,
}

/// Reason why a node has not granted the lock.
#[derive(Debug)]
pub(super) enum VoteRefusal {
    Busy { lease_remaining: Duration, queue_length: u64 },
    Fault(Error),
}

/// Answer of one node.
pub(super) struct NodeVote {
    pub(super) node_index: usize,
    pub(super) outcome: Result<OwnedHold, VoteRefusal>,
}

/// Calls in flight. If one is dropped, a grant that its node may still make is released.
pub(super) type PendingVotes = FuturesUnordered<BoxFuture<'static, NodeVote>>;

impl VoteRequest {
    pub(super) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Returns the time for a node to answer. It is short compared with the lease, because a node
    /// that hangs would use up the validity time.
    fn node_timeout(&self) -> Duration {
        let lease = self.terms.initial_lease();
        (lease / 10).clamp(Duration::from_millis(10), Duration::from_millis(250))
    }

    /// Asks all nodes. The calls still in flight become part of the hold.
    pub(super) async fn acquire_majority(&self) -> Result<Arc<QuorumHold>, AcquireError> {
        let mut pending: PendingVotes =
            (0..self.nodes.len()).map(|index| self.request_vote(index, &self.terms)).collect();
        let (mut holds, mut refusals) = (BTreeMap::new(), Vec::new());
        loop {
            while holds.len() < self.majority() {
                // If no majority is possible any more, fail at once and drop the calls in flight.
                if holds.len() + pending.len() < self.majority() {
                    return Err(self.acquire_error(holds.len(), &refusals));
                }
                let Some(NodeVote { node_index, outcome }) = pending.next().await else { continue };
                match outcome {
                    Ok(hold) => drop(holds.insert(node_index, hold)),
                    Err(refusal) => refusals.push(refusal),
                }
            }
            let fence = holds.values().map(|hold| hold.state().fence).max().unwrap_or_default();
            self.write_back_fence(fence, &mut holds, &mut refusals).await;
            if holds.len() < self.majority() {
                continue;
            }
            let hold = QuorumHold::new(
                &self.key,
                fence,
                self.nodes.len(),
                self.terms.max_hold,
                holds,
                pending,
            );
            // The calls may have taken so long that the leases are no longer certain. Then the hold
            // is dropped, which releases them. A loss is reported a little later than that, so the
            // end is compared too.
            if hold.check_loss().is_none()
                && hold.valid_until().is_some_and(|end| end > Instant::now())
            {
                return Ok(hold);
            }
            refusals.push(VoteRefusal::Fault(Error::new(ErrorKind::Timeout, "quorum")));
            return Err(self.acquire_error(0, &refusals));
        }
    }

    /// Raises the fences of the majority, so that each of its nodes grants larger ones from now on.
    ///
    /// The next majority shares a node with this one. That node grants the lock only after this
    /// holder, and so with a larger fence. Therefore a node counts only if it holds the lock while
    /// its fence is raised, and if its own fence was part of the maximum.
    async fn write_back_fence(
        &self,
        fence: u64,
        holds: &mut BTreeMap<usize, OwnedHold>,
        refusals: &mut Vec<VoteRefusal>,
    ) {
        let raises = holds.iter().map(|(node_index, hold)| async {
            (*node_index, raise_fence(hold.store(), hold.state(), fence, self.node_timeout()).await)
        });
        for (node_index, raised) in join_all(raises).await {
            if let Err(error) = raised {
                holds.remove(&node_index);
                refusals.push(VoteRefusal::Fault(error));
            }
        }
    }

    /// Returns the call that asks one node for its vote.
    pub(super) fn request_vote(
        &self,
        node_index: usize,
        terms: &LeaseTerms,
    ) -> BoxFuture<'static, NodeVote> {
        let (key, terms, node_timeout) = (self.key.clone(), terms.clone(), self.node_timeout());
        let store = self.nodes.get(node_index).cloned();
        Box::pin(async move {
            let outcome = match store {
                Some(store) => acquire_on_node(&store, key, terms, node_timeout).await,
                None => Err(VoteRefusal::Fault(Error::new(ErrorKind::Config, "quorum"))),
            };
            NodeVote { node_index, outcome }
        })
    }

    /// Returns the call that raises the fence of a node that votes later, or again. The fence then
    /// survives a loss of data at other nodes.
    pub(super) fn raise_node_fence(
        &self,
        node_index: usize,
        hold: OwnedHold,
        fence: u64,
    ) -> BoxFuture<'static, (usize, OwnedHold)> {
        let node_timeout = self.node_timeout();
        Box::pin(async move {
            // The lock is valid without it: a majority has the fence.
            let _ = raise_fence(hold.store(), hold.state(), fence, node_timeout).await;
            (node_index, hold)
        })
    }

    fn acquire_error(&self, grant_count: usize, refusals: &[VoteRefusal]) -> AcquireError {
        let (mut remaining_leases, mut faults, mut max_queue_length) = (Vec::new(), Vec::new(), 0);
        for refusal in refusals {
            match refusal {
                VoteRefusal::Fault(error) => faults.push(error),
                VoteRefusal::Busy { lease_remaining, queue_length } => {
                    remaining_leases.push(*lease_remaining);
                    max_queue_length = max_queue_length.max(*queue_length);
                }
            }
        }
        remaining_leases.sort_unstable();
        if faults.len() + self.majority() <= self.nodes.len()
            && let Some(last) = remaining_leases.last()
        {
            // The time after which enough of these nodes are free for a majority.
            let missing = self.majority().saturating_sub(grant_count + 1);
            return AcquireError::Busy(LockBusy {
                lease_remaining: *remaining_leases.get(missing).unwrap_or(last),
                queue_length: max_queue_length,
                waited: None,
            });
        }
        AcquireError::Fault(self.majority_error(&faults))
    }

    /// Returns the error of a round that failed because of these faults.
    ///
    /// A misconfigured minority does not keep the other nodes from a majority when they are back.
    fn majority_error(&self, faults: &[&Error]) -> Error {
        let is_config = |error: &&&Error| error.kind() == ErrorKind::Config;
        let config_count = faults.iter().filter(is_config).count();
        let (kind, source) = if config_count + self.majority() > self.nodes.len() {
            (ErrorKind::Config, faults.iter().find(is_config))
        } else {
            let outage = faults.iter().find(|error| !is_config(error));
            (ErrorKind::Unavailable, outage.or(faults.first()))
        };
        let error = Error::new(kind, "quorum");
        match source {
            Some(source) => error.with_source((*source).clone()),
            None => error,
        }
    }
}

/// Raises the next fence of a node above `fence`, within `node_timeout`. Spare fences of the grant
/// count: clocks that agree to some microseconds need no second call.
async fn raise_fence(
    store: &Store,
    state: &HoldState,
    fence: u64,
    node_timeout: Duration,
) -> Result<(), Error> {
    if state.fence + SPARE_FENCES >= fence {
        return Ok(());
    }
    let (key, token) = (state.key().clone(), state.lease.token.clone());
    let call = store.backend().advance_fence(key, token, fence);
    match tokio::time::timeout(node_timeout, call).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(Error::new(ErrorKind::Timeout, "quorum: the lease had ended")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::new(ErrorKind::Timeout, "quorum")),
    }
}

async fn acquire_on_node(
    store: &Store,
    key: Key,
    terms: LeaseTerms,
    node_timeout: Duration,
) -> Result<OwnedHold, VoteRefusal> {
    // Each early return, a timeout included, drops the attempt, which undoes it.
    let mut attempt = GrantAttempt::new(store, &key, LockMode::Exclusive);
    let lease = terms.initial_lease();
    let call = AcquireCommand {
        key,
        token: attempt.token.clone(),
        mode: LockMode::Exclusive,
        lease,
        // No queue entry, because no queue spans the nodes.
        max_wait: None,
        resume_seq: 0,
        record_name: None,
    };
    let reply = attempt.send(lease, || store.backend().acquire(call));
    match tokio::time::timeout(node_timeout, reply).await {
        Ok(Ok(AcquireReply::Granted { fence, .. })) => {
            attempt.accept_grant(fence, terms).map_err(VoteRefusal::Fault)
        }
        Ok(Ok(AcquireReply::Busy { lease_remaining, queue_length, .. })) => {
            attempt.mark_refused();
            Err(VoteRefusal::Busy { lease_remaining, queue_length })
        }
        Ok(Ok(AcquireReply::AlreadyAccepted)) => {
            Err(VoteRefusal::Fault(Error::new(ErrorKind::Protocol, "acquire")))
        }
        Ok(Err(error)) => Err(VoteRefusal::Fault(error)),
        Err(_) => Err(VoteRefusal::Fault(Error::new(ErrorKind::Timeout, "acquire"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error kind if some nodes are misconfigured, some unavailable, and the others
    /// busy.
    fn error_kind_of_votes(
        nodes: usize,
        misconfigured: usize,
        unavailable: usize,
    ) -> Option<ErrorKind> {
        let terms = LeaseTerms {
            lease: Duration::from_secs(3),
            renews: true,
            max_hold: Duration::from_secs(60),
            job: None,
            mode: LockMode::Exclusive,
        };
        let stores = (0..nodes).map(|_| Store::memory()).collect();
        let request = VoteRequest { nodes: stores, key: Key::custom("x"), terms };
        let fault = |kind| move |_| VoteRefusal::Fault(Error::new(kind, "acquire"));
        let busy =
            |_| VoteRefusal::Busy { lease_remaining: Duration::from_secs(1), queue_length: 0 };
        let refusals = (0..misconfigured).map(fault(ErrorKind::Config));
        let refusals = refusals.chain((0..unavailable).map(fault(ErrorKind::Unavailable)));
        let refusals: Vec<_> =
            refusals.chain((misconfigured + unavailable..nodes).map(busy)).collect();
        match request.acquire_error(0, &refusals) {
            AcquireError::Fault(error) => Some(error.kind()),
            _ => None,
        }
    }

    #[test]
    fn config_errors_decide_only_as_a_majority() {
        assert_eq!(error_kind_of_votes(3, 1, 0), None);
        assert_eq!(error_kind_of_votes(3, 1, 1), Some(ErrorKind::Unavailable));
        assert_eq!(error_kind_of_votes(3, 1, 2), Some(ErrorKind::Unavailable));
        assert_eq!(error_kind_of_votes(3, 2, 1), Some(ErrorKind::Config));
        assert_eq!(error_kind_of_votes(5, 2, 3), Some(ErrorKind::Unavailable));
        assert_eq!(error_kind_of_votes(5, 3, 0), Some(ErrorKind::Config));
    }
}
