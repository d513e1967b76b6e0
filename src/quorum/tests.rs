//! Tests of the quorum on embedded stores with scheduled faults, with tokio's clock paused.

mod fences;
mod renewal_and_release;
mod split_votes;
mod votes;

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use super::{Quorum, QuorumGuard};
use crate::{
    clock::Clock,
    lock::AcquireError,
    store::{BackendFault, FaultSchedule, Store, faulty_store_with_clock},
};

/// More calls than any test makes.
const UNLIMITED_FAULTS: usize = 1_000_000;

const LEASE: Duration = Duration::from_secs(3);

/// Time of a node to reply, with that lease.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

struct TestQuorum {
    stores: Vec<Store>,
    faults: Vec<FaultSchedule>,
    quorum: Quorum,
}

/// Polls a future once. Returns true if it is ready.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_ready())).await
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl TestQuorum {
    fn new(nodes: usize) -> Self {
        Self::with_clocks((0..nodes).map(|_| Clock::system()))
    }

    fn with_clocks(clocks: impl Iterator<Item = Clock>) -> Self {
        let (stores, faults): (Vec<_>, Vec<_>) = clocks.map(faulty_store_with_clock).unzip();
        let quorum = Store::quorum(stores.clone()).unwrap();
        Self { stores, faults, quorum }
    }

    /// Applies a fault to all calls of these nodes.
    fn fail_nodes(&self, nodes: &[usize], fault: BackendFault) {
        for node in nodes {
            self.faults[*node].set("acquire", fault, UNLIMITED_FAULTS);
            // The other calls have a deadline in the store.
            let fault = if matches!(fault, BackendFault::NeverReplies) {
                BackendFault::ReplyTimeout
            } else {
                fault
            };
            for operation in ["renew", "release", "raise_fence"] {
                self.faults[*node].set(operation, fault, UNLIMITED_FAULTS);
            }
        }
    }

    fn clear_faults(&self) {
        for faults in &self.faults {
            for operation in ["acquire", "renew", "release", "raise_fence"] {
                faults.set(operation, BackendFault::Unavailable, 0);
            }
        }
    }

    async fn acquire(&self) -> Result<QuorumGuard, AcquireError> {
        self.quorum.lock("x").lease(LEASE).acquire().await
    }

    /// Returns the nodes that report the lock as busy.
    async fn busy_nodes(&self) -> Vec<usize> {
        let mut busy = Vec::new();
        for (node, store) in self.stores.iter().enumerate() {
            match store.as_another_process().lock("x").acquire().await {
                Ok(guard) => drop(guard.release().await),
                Err(AcquireError::Busy(_)) => busy.push(node),
                Err(other) => panic!("{other:?}"),
            }
        }
        busy
    }

    /// Returns the number of nodes on which the guard has a lease.
    fn lease_count(&self, guard: &QuorumGuard) -> usize {
        guard.quorum_hold().hold_states().len()
    }

    /// Releases the leases of a guard on these nodes, as a loss of data would.
    async fn delete_leases(&self, guard: &QuorumGuard, nodes: &[usize]) {
        for node in nodes {
            let Some(hold_state) = guard.quorum_hold().hold_state_of(*node) else {
                panic!("node {node} has none")
            };
            let (key, token) = (hold_state.key().clone(), hold_state.lease.token.clone());
            let release =
                self.stores[*node].backend().release(key, token, crate::store::LockMode::Exclusive);
            release.await.unwrap();
        }
    }

    /// Asserts that all undos are done and all nodes are free.
    async fn assert_all_free(&self) {
        for store in &self.stores {
            assert!(store.shutdown(LEASE * 2).await, "a vote is left");
        }
        assert_eq!(self.busy_nodes().await, [0; 0]);
    }
}

#[test]
fn quorum_requires_an_odd_number_of_distinct_stores() {
    let stores = |n: usize| (0..n).map(|_| Store::memory());
    for n in [0, 1, 2, 4, 6, 8, 10, 11] {
        let refused = Store::quorum(stores(n)).unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::Config, "{n}");
        assert!(refused.to_string().contains(&format!("not {n}")), "{refused}");
    }
    for n in [3, 5, 7, 9] {
        assert!(Store::quorum(stores(n)).is_ok(), "{n}");
    }
    let [a, b] = [Store::memory(), Store::memory()];
    let refused = Store::quorum([a.clone(), b, a.as_another_process()]).unwrap_err();
    assert!(refused.to_string().contains("twice"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn ping_succeeds_while_a_majority_answers() {
    let rig = TestQuorum::new(5);
    let fail_pings = |nodes: &[usize]| {
        nodes.iter().for_each(|node| rig.faults[*node].set("ping", BackendFault::Unavailable, 1));
    };
    fail_pings(&[0, 4]);
    assert!(rig.quorum.ping().await.is_ok());
    fail_pings(&[0, 2, 4]);
    assert!(rig.quorum.ping().await.is_err());
}
