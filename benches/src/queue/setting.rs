//! What can be chosen of each peer.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// apalis-redis: milliseconds between two looks for jobs; without, it looks every 30 s.
    pub(crate) poll: u64,
    /// apalis-redis: jobs fetched at once.
    pub(crate) batch: usize,
    /// bee-queue: milliseconds by which it may put off delayed jobs, to see to several at once.
    pub(crate) debounce: u64,
}

impl Setting {
    /// The fastest of those that were tried (README.md).
    pub(crate) const BEST: Self = Self { poll: 1, batch: 500, debounce: 1 };
}
