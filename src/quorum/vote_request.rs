//! Round of votes: all nodes are asked at once, and a majority decides.

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

/// Answer of one node, with its number.
pub(super) type NodeVote = (usize, Result<OwnedHold, VoteRefusal>);

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
        let mut open: PendingVotes =
            (0..self.nodes.len()).map(|at| self.request_vote(at, &self.terms)).collect();
        let (mut got, mut noes) = (BTreeMap::new(), Vec::new());
        loop {
            while got.len() < self.majority() {
                // If no majority is possible any more, fail at once and drop the calls in flight.
                if got.len() + open.len() < self.majority() {
                    return Err(self.acquire_error(got.len(), &noes));
                }
                match open.next().await {
                    Some((at, Ok(hold))) => drop(got.insert(at, hold)),
                    Some((_, Err(no))) => noes.push(no),
                    None => {}
                }
            }
            let fence = got.values().map(|hold| hold.state().fence).max().unwrap_or_default();
            self.write_back_fence(fence, &mut got, &mut noes).await;
            if got.len() < self.majority() {
                continue;
            }
            let held =
                QuorumHold::new(&self.key, fence, self.nodes.len(), self.terms.max_hold, got, open);
            // The calls may have taken so long that the leases are no longer certain. Then the hold
            // is dropped, which releases them. A loss is reported a little later than that, so the
            // end is compared too.
            if held.check_loss().is_none()
                && held.valid_until().is_some_and(|end| end > Instant::now())
            {
                return Ok(held);
            }
            noes.push(VoteRefusal::Fault(Error::new(ErrorKind::Timeout, "quorum")));
            return Err(self.acquire_error(0, &noes));
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
        got: &mut BTreeMap<usize, OwnedHold>,
        noes: &mut Vec<VoteRefusal>,
    ) {
        let raises = got.iter().map(|(at, hold)| async {
            (*at, raise_fence(hold.store(), hold.state(), fence, self.node_timeout()).await)
        });
        for (at, raised) in join_all(raises).await {
            if let Err(error) = raised {
                got.remove(&at);
                noes.push(VoteRefusal::Fault(error));
            }
        }
    }

    /// Returns the call that asks one node for its vote.
    pub(super) fn request_vote(
        &self,
        at: usize,
        terms: &LeaseTerms,
    ) -> BoxFuture<'static, NodeVote> {
        let (key, terms, patience) = (self.key.clone(), terms.clone(), self.node_timeout());
        let store = self.nodes.get(at).cloned();
        Box::pin(async move {
            let Some(store) = store else {
                return (at, Err(VoteRefusal::Fault(Error::new(ErrorKind::Config, "quorum"))));
            };
            (at, acquire_on_node(&store, key, terms, patience).await)
        })
    }

    /// Returns the call that raises the fence of a node that votes later, or again. The fence then
    /// survives a loss of data at other nodes.
    pub(super) fn raise_node_fence(
        &self,
        at: usize,
        hold: OwnedHold,
        fence: u64,
    ) -> BoxFuture<'static, (usize, OwnedHold)> {
        let patience = self.node_timeout();
        Box::pin(async move {
            // The lock is valid without it: a majority has the fence.
            let _ = raise_fence(hold.store(), hold.state(), fence, patience).await;
            (at, hold)
        })
    }

    fn acquire_error(&self, got: usize, noes: &[VoteRefusal]) -> AcquireError {
        let (mut lefts, mut faults, mut longest) = (Vec::new(), Vec::new(), 0);
        for no in noes {
            match no {
                VoteRefusal::Fault(error) => faults.push(error),
                VoteRefusal::Busy { lease_remaining: left, queue_length: line } => {
                    lefts.push(*left);
                    longest = longest.max(*line);
                }
            }
        }
        lefts.sort_unstable();
        if faults.len() + self.majority() <= self.nodes.len()
            && let Some(last) = lefts.last()
        {
            // The time after which enough of these nodes are free for a majority.
            let missing = self.majority().saturating_sub(got + 1);
            let left = lefts.get(missing).unwrap_or(last);
            return AcquireError::Busy(LockBusy {
                lease_remaining: *left,
                queue_length: longest,
                waited: None,
            });
        }
        // A misconfigured minority does not keep the other nodes from a majority when they are
        // back.
        let is_wrong = |error: &&&Error| error.kind() == ErrorKind::Config;
        let wrong = faults.iter().filter(is_wrong).count();
        let (kind, told) = if wrong + self.majority() > self.nodes.len() {
            (ErrorKind::Config, faults.iter().find(is_wrong))
        } else {
            let other = faults.iter().find(|error| !is_wrong(error));
            (ErrorKind::Unavailable, other.or(faults.first()))
        };
        let error = Error::new(kind, "quorum");
        AcquireError::Fault(match told {
            Some(told) => error.with_source((*told).clone()),
            None => error,
        })
    }
}

/// Raises the next fence of a node above `fence`, within `patience`. Spare fences of the grant
/// count: clocks that agree to some microseconds need no second call.
async fn raise_fence(
    store: &Store,
    facts: &HoldState,
    fence: u64,
    patience: Duration,
) -> Result<(), Error> {
    if facts.fence + SPARE_FENCES >= fence {
        return Ok(());
    }
    let (key, me) = (facts.key().clone(), facts.lease.token.clone());
    let call = store.backend().advance_fence(key, me, fence);
    match tokio::time::timeout(patience, call).await {
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
    patience: Duration,
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
    let asked = attempt.send(lease, || store.backend().acquire(call));
    match tokio::time::timeout(patience, asked).await {
        Ok(Ok(AcquireReply::Granted { fence, .. })) => {
            attempt.accept_grant(fence, terms).map_err(VoteRefusal::Fault)
        }
        Ok(Ok(AcquireReply::Busy { lease_remaining: left, queue_length: line, .. })) => {
            attempt.mark_refused();
            Err(VoteRefusal::Busy { lease_remaining: left, queue_length: line })
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

    /// What so many nodes have said of which these are wrong, these away and the others another's.
    fn error_kind_of_votes(nodes: usize, wrong: usize, away: usize) -> Option<ErrorKind> {
        let terms = LeaseTerms {
            lease: Duration::from_secs(3),
            renews: true,
            max_hold: Duration::from_secs(60),
            job: None,
            mode: LockMode::Exclusive,
        };
        let stores = (0..nodes).map(|_| Store::memory()).collect();
        let asking = VoteRequest { nodes: stores, key: Key::custom("x"), terms };
        let fault = |kind| move |_| VoteRefusal::Fault(Error::new(kind, "acquire"));
        let busy =
            |_| VoteRefusal::Busy { lease_remaining: Duration::from_secs(1), queue_length: 0 };
        let noes = (0..wrong).map(fault(ErrorKind::Config));
        let noes = noes.chain((0..away).map(fault(ErrorKind::Unavailable)));
        let noes: Vec<_> = noes.chain((wrong + away..nodes).map(busy)).collect();
        match asking.acquire_error(0, &noes) {
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
