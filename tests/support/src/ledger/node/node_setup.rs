//! `NodeSetup`: settings of a process of the fleet, apart from its store and its log.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::site::WebFramework;

/// Settings of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeSetup {
    /// Framework of the routes and the worker.
    pub framework: WebFramework,
    /// True if the process has a worker.
    pub has_worker: bool,
    /// Lease of locks and runs.
    pub lease: Duration,
    /// Drain timeout of the worker.
    pub drain_timeout: Duration,
    /// Concurrent runs.
    pub concurrency: usize,
    /// True if all workers together run one job at a time and start ten a second.
    pub has_shared_run_limits: bool,
    /// Largest number of runs of a PUT.
    pub max_put_runs: u32,
    /// Numbers of the sealing keys: the first one seals, all open. Empty: no sealing.
    pub sealing_key_numbers: Vec<u8>,
    /// Server of the registers that runs write; empty: none.
    pub registers_url: String,
    /// Timeout of a call to the store.
    pub call_timeout: Duration,
}

impl NodeSetup {
    /// Settings of a node with a worker and leases of two seconds.
    #[must_use]
    pub fn new(framework: WebFramework) -> Self {
        Self {
            framework,
            has_worker: true,
            lease: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(5),
            concurrency: 8,
            has_shared_run_limits: false,
            max_put_runs: 5,
            sealing_key_numbers: Vec::new(),
            registers_url: String::new(),
            // Far above the duration of a call: a loaded machine is no outage.
            call_timeout: Duration::from_secs(5),
        }
    }

    /// Removes the worker.
    #[must_use]
    pub fn without_worker(self) -> Self {
        Self { has_worker: false, ..self }
    }
}
