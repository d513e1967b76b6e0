//! Gates: where a handler says that it has begun, and waits until the test lets it go on.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::wait::within;

/// The gates of a case, by name. A gate that nobody has named yet is closed.
#[derive(Debug, Clone, Default)]
pub struct Gates(Arc<Mutex<HashMap<String, Gate>>>);

#[derive(Debug, Clone)]
struct Gate {
    arrived: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { arrived: watch::Sender::new(0), open: watch::Sender::new(false) }
    }
}

impl Gates {
    fn gate(&self, name: &str) -> Gate {
        self.0.lock().entry(name.to_owned()).or_default().clone()
    }

    /// The handler's side: says so, and waits until the gate is open. Without end, since the test's own
    /// patience ends the test.
    pub async fn pass(&self, name: &str) {
        let gate = self.gate(name);
        let mut open = gate.open.subscribe();
        gate.arrived.send_modify(|arrived| *arrived += 1);
        // The sender is ours: it can't be gone.
        let _ = open.wait_for(|open| *open).await;
    }

    /// The test's side: waits until somebody has arrived.
    pub async fn arrived(&self, name: &str) {
        self.arrived_times(name, 1).await;
    }

    /// Waits until so many have arrived, since the beginning.
    pub async fn arrived_times(&self, name: &str, times: usize) {
        let mut arrived = self.gate(name).arrived.subscribe();
        let enough = arrived.wait_for(|arrived| *arrived >= times);
        let _ = within(&format!("an arrival at the gate {name}"), enough).await;
    }

    /// How many have arrived, since the beginning.
    #[must_use]
    pub fn arrivals(&self, name: &str) -> usize {
        *self.gate(name).arrived.borrow()
    }

    /// Opens a gate, for all that are there and all that will come.
    pub fn open(&self, name: &str) {
        self.gate(name).open.send_replace(true);
    }
}
