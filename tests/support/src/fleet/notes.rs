//! When a fault or the machine has touched a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    Fleet,
    clock::{self, ns},
};
use crate::checker::{
    ProcessIncarnation,
    deferred::{DeferredHistory, ProcessDisturbance},
};

/// What the checks have to know of the faults.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// When each process was killed, ns.
    pub(crate) killed: HashMap<ProcessIncarnation, u64>,
    /// When each process was told to end, ns.
    pub(crate) stopping: HashMap<ProcessIncarnation, u64>,
    /// Times in which something was done to a process, or to all.
    pub(crate) troubles: Vec<ProcessDisturbance>,
    /// Times in which the machine had no time for this process or the server, ns.
    pub(crate) stalls: Vec<(u64, u64)>,
}

impl Notes {
    /// Moves all of it into the history of a domain with runs.
    pub(crate) fn tell(self, history: &mut DeferredHistory) {
        history.killed_at = self.killed;
        history.drained = self.stopping.keys().copied().collect();
        history.stop_requested_at = self.stopping;
        history.disturbances = self.troubles;
        let stalls = self.stalls.into_iter().map(|(from, to)| ProcessDisturbance {
            incarnation: None,
            from,
            to,
        });
        history.stalls.extend(stalls);
    }
}

impl<D, G> Fleet<D, G> {
    /// Notes that something was done to this process, or to all, in this time.
    pub fn trouble(&self, node: Option<usize>, from: u64, to: u64) {
        let life = node.map(|node| self.seats[node].life);
        self.notes.lock().troubles.push(ProcessDisturbance { incarnation: life, from, to });
    }

    /// Like [`trouble`](Self::trouble), from now on for so long.
    pub fn trouble_for(&self, node: Option<usize>, time: Duration) {
        let now = clock::now();
        self.trouble(node, now, now + ns(time));
    }

    /// Like [`trouble_for`](Self::trouble_for), from when it is called: for a [`QuotaRule`](crate::proxy::Rule).
    pub fn troubler(&self, node: usize, time: Duration) -> impl Fn() + Send + Sync + 'static {
        let (life, notes) = (Some(self.seats[node].life), Arc::clone(&self.notes));
        move || {
            let from = clock::now();
            notes.lock().troubles.push(ProcessDisturbance {
                incarnation: life,
                from,
                to: from + ns(time),
            });
        }
    }

    /// Takes all notes, for the check.
    pub(crate) fn take_notes(&self) -> Notes {
        std::mem::take(&mut *self.notes.lock())
    }

    /// Reads the notes while more are made.
    pub(crate) fn noted(&self, read: impl FnOnce(&Notes)) {
        read(&self.notes.lock());
    }
}
