//! [`HandleTable`]: handles of one metric by the value of its label.

use std::sync::{
    LazyLock, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

/// Values of a label that a metric distinguishes. Names come from code, so a service has far fewer;
/// the bound is for a program that makes names from data.
pub(crate) const MAX_LABEL_VALUES: usize = 256;

/// Value of a label beyond `MAX_LABEL_VALUES`.
pub(crate) const OTHER: &str = "other";

/// Twice as many as values, so that a look-up soon meets its value or an empty slot.
const SLOT_COUNT: usize = 2 * MAX_LABEL_VALUES;

type Slot<H> = OnceLock<Box<LabelHandles<H>>>;

/// Hash table to which values are only added. So a look-up takes no lock and counts no reference:
/// each request makes several, and with a lock around a map they were most of the cost of metrics.
pub(super) struct HandleTable<H> {
    slots: LazyLock<Box<[Slot<H>]>>,
    value_count: AtomicUsize,
}

/// Handles of one value of the label. Each is resolved on its first use.
pub(super) struct LabelHandles<H> {
    pub(super) value: Box<str>,
    pub(super) handles: Box<[OnceLock<H>]>,
}

impl<H> HandleTable<H> {
    pub(super) const fn new() -> Self {
        let create_slots = || (0..SLOT_COUNT).map(|_| OnceLock::new()).collect();
        Self { slots: LazyLock::new(create_slots), value_count: AtomicUsize::new(0) }
    }

    /// Returns the handles of a value, or those of `OTHER` if there are too many values.
    pub(super) fn find_or_add(
        &self,
        value: &str,
        handle_count: impl Fn() -> usize,
    ) -> Option<&LabelHandles<H>> {
        self.probe(value, &handle_count).or_else(|| self.probe(OTHER, &handle_count))
    }

    fn probe(&self, value: &str, handle_count: impl Fn() -> usize) -> Option<&LabelHandles<H>> {
        let (slots, first) = (&**self.slots, hash(value));
        for index in first..first + SLOT_COUNT {
            let slot = slots.get(index % SLOT_COUNT)?;
            if slot.get().is_none() {
                let is_full = self.value_count.load(Ordering::Relaxed) >= MAX_LABEL_VALUES;
                if is_full && value != OTHER {
                    return None;
                }
            }
            // Another thread may have added another value meanwhile.
            let found = slot.get_or_init(|| {
                self.value_count.fetch_add(1, Ordering::Relaxed);
                let handles = (0..handle_count()).map(|_| OnceLock::new()).collect();
                Box::new(LabelHandles { value: value.into(), handles })
            });
            if *found.value == *value {
                return Some(found);
            }
        }
        None
    }
}

/// Hashes the length and the last eight bytes: names of one program rarely share both.
fn hash(value: &str) -> usize {
    let bytes = value.as_bytes();
    let tail = match bytes.last_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => bytes.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte)),
    };
    // Fibonacci hashing: the upper bits depend on all bytes.
    let product = (tail ^ bytes.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(product >> 32).unwrap_or_default() % SLOT_COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_bound_share_one_entry() {
        let table = HandleTable::<u8>::new();
        let names: Vec<String> = (0..MAX_LABEL_VALUES + 9).map(|n| format!("/r{n}/end")).collect();
        for _ in 0..2 {
            for (index, name) in names.iter().enumerate() {
                let found = table.find_or_add(name, || 3).expect("there is an entry");
                let expected = if index < MAX_LABEL_VALUES { name } else { OTHER };
                assert_eq!((&*found.value, found.handles.len()), (expected, 3));
            }
        }
    }
}
