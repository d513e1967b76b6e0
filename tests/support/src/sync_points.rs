//! `SyncPoints`: named gates at which a handler reports its arrival and waits until the test opens
//! them.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::wait::with_timeout;

/// The gates of a case, by name. A gate is closed until it is opened.
#[derive(Debug, Clone, Default)]
pub struct SyncPoints(Arc<Mutex<HashMap<String, SyncPoint>>>);

#[derive(Debug, Clone)]
struct SyncPoint {
    arrival_count: watch::Sender<usize>,
    is_open: watch::Sender<bool>,
}

impl Default for SyncPoint {
    fn default() -> Self {
        Self { arrival_count: watch::Sender::new(0), is_open: watch::Sender::new(false) }
    }
}

impl SyncPoints {
    fn sync_point(&self, name: &str) -> SyncPoint {
        self.0.lock().entry(name.to_owned()).or_default().clone()
    }

    /// For the handler: reports its arrival and waits until the gate is open. It has no timeout,
    /// since the test has one.
    pub async fn wait_at(&self, name: &str) {
        let gate = self.sync_point(name);
        let mut open = gate.is_open.subscribe();
        gate.arrival_count.send_modify(|arrived| *arrived += 1);
        // The sender is owned by `self`, so the wait cannot fail.
        let _ = open.wait_for(|open| *open).await;
    }

    /// For the test: waits for the first arrival.
    pub async fn wait_for_arrival(&self, name: &str) {
        self.wait_for_arrivals(name, 1).await;
    }

    /// Waits for this number of arrivals, counted from the start.
    pub async fn wait_for_arrivals(&self, name: &str, times: usize) {
        let mut arrived = self.sync_point(name).arrival_count.subscribe();
        let enough = arrived.wait_for(|arrived| *arrived >= times);
        let _ = with_timeout(&format!("an arrival at the gate {name}"), enough).await;
    }

    /// Returns the number of arrivals since the start.
    #[must_use]
    pub fn arrival_count(&self, name: &str) -> usize {
        *self.sync_point(name).arrival_count.borrow()
    }

    /// Opens a gate for all present and future arrivals.
    pub fn open(&self, name: &str) {
        self.sync_point(name).is_open.send_replace(true);
    }
}
