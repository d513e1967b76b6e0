//! `DisturbanceLog`: times at which a fault or the machine disturbed a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    ProcessFleet,
    clock::{self, duration_ns},
};
use crate::checker::{
    ProcessIncarnation,
    deferred::{DeferredHistory, ProcessDisturbance},
};

/// Faults that the checks have to take into account.
#[derive(Debug, Default)]
pub(crate) struct DisturbanceLog {
    /// When each process was killed, ns.
    pub(crate) killed_at: HashMap<ProcessIncarnation, u64>,
    /// Time at which each process got the stop signal, ns.
    pub(crate) stop_requested_at: HashMap<ProcessIncarnation, u64>,
    /// Times of faults of one process or of all.
    pub(crate) disturbances: Vec<ProcessDisturbance>,
    /// Times in which the machine did not run this process or the server, ns.
    pub(crate) stalls: Vec<(u64, u64)>,
}

impl DisturbanceLog {
    /// Moves the disturbances into the history of a domain with runs.
    pub(crate) fn add_to_history(self, history: &mut DeferredHistory) {
        history.killed_at = self.killed_at;
        history.drained = self.stop_requested_at.keys().copied().collect();
        history.stop_requested_at = self.stop_requested_at;
        history.disturbances = self.disturbances;
        let stalls = self.stalls.into_iter().map(|(from, to)| ProcessDisturbance {
            incarnation: None,
            from,
            to,
        });
        history.stalls.extend(stalls);
    }
}

impl<D, G> ProcessFleet<D, G> {
    /// Records a disturbance of this process, or of all, in this time.
    pub fn record_disturbance(&self, node: Option<usize>, from: u64, to: u64) {
        let incarnation = node.map(|node| self.members[node].incarnation);
        self.disturbances.lock().disturbances.push(ProcessDisturbance { incarnation, from, to });
    }

    /// Like [`record_disturbance`](Self::record_disturbance), for a duration from now.
    pub fn record_disturbance_for(&self, node: Option<usize>, duration: Duration) {
        let now = clock::now_ns();
        self.record_disturbance(node, now, now + duration_ns(duration));
    }

    /// Returns a callback like [`record_disturbance_for`](Self::record_disturbance_for), for a
    /// [`FaultRule`](crate::proxy::FaultRule).
    pub fn disturbance_callback(
        &self,
        node: usize,
        duration: Duration,
    ) -> impl Fn() + Send + Sync + 'static {
        let (incarnation, log) =
            (Some(self.members[node].incarnation), Arc::clone(&self.disturbances));
        move || {
            let from = clock::now_ns();
            log.lock().disturbances.push(ProcessDisturbance {
                incarnation,
                from,
                to: from + duration_ns(duration),
            });
        }
    }

    /// Takes the log, for the check.
    pub(crate) fn take_disturbances(&self) -> DisturbanceLog {
        std::mem::take(&mut *self.disturbances.lock())
    }

    /// Reads the log while it is still being written.
    pub(crate) fn read_disturbances(&self, read: impl FnOnce(&DisturbanceLog)) {
        read(&self.disturbances.lock());
    }
}
