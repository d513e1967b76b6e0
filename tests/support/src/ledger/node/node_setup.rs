//! `NodeSetup`: settings of a process of the fleet, apart from its store and its log.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::site::WebFramework;

/// How a process is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeSetup {
    /// Of its routes and its worker.
    pub framework: WebFramework,
    /// Whether it has a worker.
    pub has_worker: bool,
    /// Of locks and of runs.
    pub lease: Duration,
    /// How long it drains.
    pub drain_timeout: Duration,
    /// Runs at once.
    pub concurrency: usize,
    /// Whether all workers together run one at once, and begin ten a second.
    pub has_shared_run_limits: bool,
    /// Most runs of a PUT.
    pub max_put_runs: u32,
    /// Numbers of the keys that requests are sealed with: the first one seals, all open. None: not sealed.
    pub sealing_key_numbers: Vec<u8>,
    /// The server with the registers that runs write to; empty: they write to none.
    pub registers_url: String,
    /// Of a call to the store.
    pub call_timeout: Duration,
}

impl NodeSetup {
    /// A node with a worker, with leases of two seconds.
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
            // Above what a call takes: a loaded machine is no outage.
            call_timeout: Duration::from_secs(5),
        }
    }

    /// Without a worker.
    #[must_use]
    pub fn without_worker(self) -> Self {
        Self { has_worker: false, ..self }
    }
}
