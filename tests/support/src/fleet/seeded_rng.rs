//! `SeededRng`: random numbers that a seed reproduces. The history itself is not reproducible.

use std::time::Duration;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct SeededRng(u64);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// Returns a random index below `len`.
    pub(crate) fn random_index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.random_index(items.len())]
    }

    /// Returns true with this probability in percent.
    pub(crate) fn chance_percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub(crate) fn duration_between_ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}
