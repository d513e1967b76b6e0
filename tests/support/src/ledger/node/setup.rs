//! What a process of the fleet is told, besides its store and its log.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::site::Framework;

/// How a process is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Of its routes and its worker.
    pub framework: Framework,
    /// Whether it has a worker.
    pub works: bool,
    /// Of locks and of runs.
    pub lease: Duration,
    /// How long it drains.
    pub drain: Duration,
    /// Runs at once.
    pub concurrency: usize,
    /// Whether all workers together run one at once, and begin ten a second.
    pub limited: bool,
    /// Most runs of a PUT.
    pub most: u32,
    /// Numbers of the keys that requests are sealed with: the first one seals, all open. None: not sealed.
    pub keys: Vec<u8>,
    /// The server with the registers that runs write to; empty: they write to none.
    pub registers: String,
    /// Of a call to the store.
    pub deadline: Duration,
}

impl Setup {
    /// A node with a worker, with leases of two seconds.
    #[must_use]
    pub fn new(framework: Framework) -> Self {
        Self {
            framework,
            works: true,
            lease: Duration::from_secs(2),
            drain: Duration::from_secs(5),
            concurrency: 8,
            limited: false,
            most: 5,
            keys: Vec::new(),
            registers: String::new(),
            // Above what a call takes: a loaded machine is no outage.
            deadline: Duration::from_secs(5),
        }
    }

    /// Without a worker.
    #[must_use]
    pub fn web_only(self) -> Self {
        Self { works: false, ..self }
    }
}
