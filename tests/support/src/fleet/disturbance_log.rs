//! `DisturbanceLog`: times at which a fault or the machine has disturbed a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    ProcessFleet,
    clock::{self, duration_ns},
};
use crate::checker::{
    ProcessIncarnation,
    deferred::{DeferredHistory, ProcessDisturbance},
};

/// What the checks have to know of the faults.
#[derive(Debug, Default)]
pub(crate) struct DisturbanceLog {
    /// When each process was killed, ns.
    pub(crate) killed_at: HashMap<ProcessIncarnation, u64>,
    /// When each process was told to end, ns.
    pub(crate) stop_requested_at: HashMap<ProcessIncarnation, u64>,
    /// Times in which something was done to a process, or to all.
    pub(crate) disturbances: Vec<ProcessDisturbance>,
    /// Times in which the machine had no time for this process or the server, ns.
    pub(crate) stalls: Vec<(u64, u64)>,
}

impl DisturbanceLog {
    /// Moves all of it into the history of a domain with runs.
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
    /// Notes that something was done to this process, or to all, in this time.
    pub fn record_disturbance(&self, node: Option<usize>, from: u64, to: u64) {
        let life = node.map(|node| self.members[node].incarnation);
        self.disturbances.lock().disturbances.push(ProcessDisturbance {
            incarnation: life,
            from,
            to,
        });
    }

    /// Like [`record_disturbance`](Self::record_disturbance), from now on for so long.
    pub fn record_disturbance_for(&self, node: Option<usize>, time: Duration) {
        let now = clock::now_ns();
        self.record_disturbance(node, now, now + duration_ns(time));
    }

    /// Like [`record_disturbance_for`](Self::record_disturbance_for), from when it is called: for a
    /// [`FaultRule`](crate::proxy::FaultRule).
    pub fn disturbance_callback(
        &self,
        node: usize,
        time: Duration,
    ) -> impl Fn() + Send + Sync + 'static {
        let (life, notes) = (Some(self.members[node].incarnation), Arc::clone(&self.disturbances));
        move || {
            let from = clock::now_ns();
            notes.lock().disturbances.push(ProcessDisturbance {
                incarnation: life,
                from,
                to: from + duration_ns(time),
            });
        }
    }

    /// Takes all notes, for the check.
    pub(crate) fn take_disturbances(&self) -> DisturbanceLog {
        std::mem::take(&mut *self.disturbances.lock())
    }

    /// Reads the notes while more are made.
    pub(crate) fn read_disturbances(&self, read: impl FnOnce(&DisturbanceLog)) {
        read(&self.disturbances.lock());
    }
}
