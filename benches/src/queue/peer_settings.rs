//! Settings of the peers.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerSettings {
    /// apalis-redis: milliseconds between polls; the default is 30 s.
    pub(crate) poll_interval_millis: u64,
    /// apalis-redis: jobs fetched by one poll.
    pub(crate) fetch_batch_size: usize,
    /// bee-queue: milliseconds that it may delay a due job in order to batch several.
    pub(crate) debounce_millis: u64,
}

impl PeerSettings {
    /// Fastest of the settings that were tried; see README.md.
    pub(crate) const FASTEST: Self =
        Self { poll_interval_millis: 1, fetch_batch_size: 500, debounce_millis: 1 };
}
