//! [`FleetReport`]: the answers of all processes to an operator's inquiry.

use std::sync::Arc;

use serde::Serialize;
use tokio::time::sleep;

use super::{
    fleet_look::{FleetLook, LastLook},
    inquiry_listener::{InquiryListener, MAX_REPORTS},
    process_report::ProcessReport,
    silent_node::SilentNode,
    wait_report::WaitReport,
};
use crate::{
    durations::saturating_millis,
    error::Error,
    key::Key,
    store::{Store, WeakStore, backend::random_hex_id},
};

/// Answers of the processes that use a store.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct FleetReport {
    /// Processes that answered, by host and process id.
    pub processes: Vec<ProcessReport>,
    /// Nodes with workers for deferred requests that did not answer: the process has died, hangs,
    /// or cannot reach the store. The other workers remove one soon after the end of its lease.
    /// None if the inquiry was about one lock.
    pub silent: Vec<SilentNode>,
    /// True if 256 store handles have answered, the most that an inquiry takes: there may be
    /// others.
    pub truncated: bool,
}

impl FleetReport {
    /// Returns the process of this node.
    #[must_use]
    pub fn process(&self, node: &str) -> Option<&ProcessReport> {
        self.processes.iter().find(|process| process.node == node)
    }

    /// Returns the locks with the longest waits, at most 20, the longest first. The number of
    /// waiters is the sum over the processes in which the lock is one of the 20 with the longest.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::Error> {
    /// let fleet = lockgate::Store::memory().fleet().await?;
    /// assert!(fleet.longest_waits().is_empty());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn longest_waits(&self) -> Vec<WaitReport> {
        let waits = self.processes.iter().flat_map(|process| &process.waits);
        WaitReport::longest(waits.cloned())
    }
}

impl Store {
    /// Asks all processes of the namespace what they do: which locks they hold and for how long,
    /// who waits for locks, their workers and their counts.
    ///
    /// It takes as long as the slowest process needs to answer, at most half a second. If as many
    /// processes as in the last inquiry of this handle do not answer, it ends once 40 ms have
    /// passed without another answer. On a Redis Cluster, which does not count its subscribers,
    /// the first inquiry takes half a second, and later ones end in this way.
    ///
    /// A process answers once it has used a lock, a limit, a worker or a queue of the store.
    /// Nothing is stored without an inquiry, and the answers expire in 10 s.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = lockgate::Store::memory();
    /// let _guard = store.lock("order:7").acquire().await?;
    /// let fleet = store.fleet().await?;
    /// assert_eq!(fleet.processes[0].holds[0].lock, "order:7");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn fleet(&self) -> Result<FleetReport, Error> {
        let (mut fleet, workers) =
            tokio::try_join!(self.ask_fleet(None), self.backend().list_registered_workers())?;
        let silent = workers.into_iter().filter(|(node, _)| fleet.process(node).is_none());
        let silent = silent.map(|(node, lease_left)| {
            let lease_left_ms = saturating_millis(lease_left);
            SilentNode { node, lease_left_ms }
        });
        fleet.silent = silent.collect();
        fleet.silent.sort_by(|left, right| left.node.cmp(&right.node));
        Ok(fleet)
    }

    /// Asks all processes, about one lock or about everything.
    pub(crate) async fn ask_fleet(&self, lock: Option<&Key>) -> Result<FleetReport, Error> {
        let (inquiry, backend) = (random_hex_id().to_string(), self.backend());
        let last = self.extension::<LastLook>();
        let receivers = backend.ask_fleet(inquiry.clone(), lock.cloned()).await?;
        // One node of a cluster may know its own subscribers only.
        let mut look = FleetLook::new(receivers, !backend.is_clustered(), &last);
        while let Some(wait) = look.next_wait() {
            sleep(wait).await;
            look.add(backend.read_reports(inquiry.clone(), look.reports.len()).await?);
        }
        let reports = look.finish(&last);
        let truncated = reports.len() as u64 >= MAX_REPORTS;
        let parsed = reports.iter().filter_map(|report| serde_json::from_str(report).ok());
        let mut processes: Vec<ProcessReport> = parsed.collect();
        processes.sort_by(|left, right| (&left.host, left.pid).cmp(&(&right.host, right.pid)));
        Ok(FleetReport { processes, silent: Vec::new(), truncated })
    }
}

/// Answers inquiries for a store handle.
pub(crate) struct FleetResponder(WeakStore);

impl FleetResponder {
    /// Creates the responder, for as long as the caller keeps it.
    pub(crate) fn new(store: WeakStore) -> Arc<Self> {
        Arc::new(Self(store))
    }
}

impl InquiryListener for FleetResponder {
    fn on_inquiry(&self, inquiry: &str, lock: Option<&Key>) {
        let Some(store) = self.0.upgrade() else { return };
        let (inquiry, report) = (inquiry.to_owned(), ProcessReport::of(&store, lock));
        let weak_store = self.0.clone();
        store.spawn_background(async move {
            let Some(store) = weak_store.upgrade() else { return };
            let Ok(report) = serde_json::to_string(&report) else { return };
            // Without an answer, the operator sees one process less.
            drop(store.backend().append_report(inquiry, report).await);
        });
    }

    fn on_forced_release(&self) {
        if let Some(store) = self.0.upgrade() {
            store.agent().recheck_leases();
        }
    }
}
