//! What can be chosen of each peer. `cargo xtask bench defer --sweep` tries these, and writes what it saw to
//! `benches/SWEEP-DEFER.md`.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// apalis-redis: milliseconds between two looks for jobs; without, it looks every 30 s.
    pub(crate) poll: u64,
    /// apalis-redis: jobs fetched at once.
    pub(crate) batch: usize,
    /// bee-queue: milliseconds by which it may put off delayed jobs, to see to several at once.
    pub(crate) debounce: u64,
    /// Jobs in one call when a backlog is made; 1 for 32 producers that push one each.
    pub(crate) fill: u64,
}

impl Setting {
    /// What the sweep has chosen; each of them is about one peer, or about all.
    pub(crate) const BEST: Self = Self { poll: 1, batch: 500, debounce: 1, fill: 1 };
}
