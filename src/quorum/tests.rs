//! On embedded stores that fail as they are told, with tokio's clock stopped.

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

/// How long a node may take, of that lease.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

struct TestQuorum {
    stores: Vec<Store>,
    faults: Vec<FaultSchedule>,
    quorum: Quorum,
}

/// After one more look at it.
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

    /// The next calls of these nodes meet this fault, whatever they are.
    fn fail_nodes(&self, nodes: &[usize], fault: BackendFault) {
        for at in nodes {
            self.faults[*at].set("acquire", fault, UNLIMITED_FAULTS);
            // A store's own deadline ends these.
            let fault = if matches!(fault, BackendFault::NeverReplies) {
                BackendFault::ReplyTimeout
            } else {
                fault
            };
            for step in ["renew", "release", "raise_fence"] {
                self.faults[*at].set(step, fault, UNLIMITED_FAULTS);
            }
        }
    }

    fn clear_faults(&self) {
        for faults in &self.faults {
            for step in ["acquire", "renew", "release", "raise_fence"] {
                faults.set(step, BackendFault::Unavailable, 0);
            }
        }
    }

    async fn acquire(&self) -> Result<QuorumGuard, AcquireError> {
        self.quorum.lock("x").lease(LEASE).acquire().await
    }

    /// Which nodes say that somebody has it.
    async fn busy_nodes(&self) -> Vec<usize> {
        let mut taken = Vec::new();
        for (at, store) in self.stores.iter().enumerate() {
            match store.as_another_process().lock("x").acquire().await {
                Ok(guard) => drop(guard.release().await),
                Err(AcquireError::Busy(_)) => taken.push(at),
                Err(other) => panic!("{other:?}"),
            }
        }
        taken
    }

    /// How many nodes it has a lease of.
    fn lease_count(&self, guard: &QuorumGuard) -> usize {
        guard.quorum_hold().hold_states().len()
    }

    /// These nodes forget who has it.
    async fn delete_leases(&self, guard: &QuorumGuard, nodes: &[usize]) {
        for at in nodes {
            let Some(facts) = guard.quorum_hold().hold_state_of(*at) else {
                panic!("node {at} has none")
            };
            let (key, me) = (facts.key().clone(), facts.lease.token.clone());
            let gone =
                self.stores[*at].backend().release(key, me, crate::store::LockMode::Exclusive);
            gone.await.unwrap();
        }
    }

    /// All that was dropped has been given back, and nobody has anything.
    async fn assert_all_free(&self) {
        for store in &self.stores {
            assert!(store.shutdown(LEASE * 2).await, "something is left to give back");
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
    let away = |nodes: &[usize]| {
        nodes.iter().for_each(|at| rig.faults[*at].set("ping", BackendFault::Unavailable, 1));
    };
    away(&[0, 4]);
    assert!(rig.quorum.ping().await.is_ok());
    away(&[0, 2, 4]);
    assert!(rig.quorum.ping().await.is_err());
}
