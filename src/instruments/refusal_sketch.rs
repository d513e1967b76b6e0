//! [`RefusalSketch`]: the subjects that were refused most often, in bounded memory.

use crate::key::Key;

/// Most subjects that a sketch counts.
pub(super) const SKETCH_CAPACITY: usize = 64;

/// Counts of the most frequent subjects by the Space-Saving algorithm (Metwally, Agrawal and El
/// Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005). A full
/// sketch gives the least count to a new subject, with that count as its error.
///
/// After `n` refusals, with `k` = `SKETCH_CAPACITY`:
///
/// - A subject with more than `n / k` of them has a count.
/// - The number of refusals of a counted subject is at most its count, and at least its count minus
///   its error, which is at most `n / k`.
#[derive(Debug, Default)]
pub(super) struct RefusalSketch {
    /// Sorted by count, the highest first.
    counts: Vec<SubjectCount>,
}

/// Count of one subject.
#[derive(Debug, Clone)]
pub(super) struct SubjectCount {
    /// Compared before the subject: a flood of many subjects compares all of them.
    hash: u64,
    pub(super) subject: Key,
    pub(super) count: u64,
    /// Part of the count that may be refusals of other subjects.
    pub(super) error: u64,
}

impl RefusalSketch {
    /// Counts a refusal. `hash` is the [`fnv_hash`](Key::fnv_hash) of the subject.
    pub(super) fn record(&mut self, subject: &Key, hash: u64) {
        let is_subject =
            |counted: &SubjectCount| counted.hash == hash && counted.subject == *subject;
        if let Some(index) = self.counts.iter().position(is_subject) {
            return self.increment(index);
        }
        if self.counts.len() < SKETCH_CAPACITY {
            let count = SubjectCount { hash, subject: subject.clone(), count: 1, error: 0 };
            self.counts.push(count);
        } else if let Some(least) = self.counts.last_mut() {
            (least.hash, least.subject, least.error) = (hash, subject.clone(), least.count);
            self.increment(SKETCH_CAPACITY - 1);
        }
    }

    /// Returns the counts, the highest first.
    pub(super) fn counts(&self) -> &[SubjectCount] {
        &self.counts
    }

    /// Returns the highest number of refusals that a subject without a count may have.
    pub(super) fn max_uncounted(&self) -> u64 {
        let least = self.counts.get(SKETCH_CAPACITY - 1);
        least.map_or(0, |least| least.count)
    }

    /// Increments a count. It changes its position with the first one that was equal.
    fn increment(&mut self, index: usize) {
        let Some(count) = self.counts.get(index).map(|count| count.count) else { return };
        let first_equal = self.counts.partition_point(|other| other.count > count);
        self.counts.swap(first_equal, index);
        if let Some(incremented) = self.counts.get_mut(first_equal) {
            incremented.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Floods of few subjects, of many, and of both after each other.
    fn refused_subjects() -> impl Strategy<Value = Vec<u16>> {
        let few = prop::collection::vec(0..5u16, 0..300);
        let many = prop::collection::vec(5..400u16, 0..300);
        let mixed = prop::collection::vec(prop_oneof![0..5u16, 5..400u16], 0..300);
        prop::collection::vec(prop_oneof![few, many, mixed], 0..5).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn no_frequent_subject_is_missed_and_all_counts_are_within_their_errors(
            subjects in refused_subjects()
        ) {
            let mut sketch = RefusalSketch::default();
            let mut refusals: HashMap<Key, u64> = HashMap::new();
            for number in &subjects {
                let subject = Key::custom(&number.to_string());
                sketch.record(&subject, subject.fnv_hash());
                *refusals.entry(subject).or_default() += 1;
            }
            let max_error = (subjects.len() / SKETCH_CAPACITY) as u64;
            let counts = sketch.counts();
            prop_assert!(counts.len() <= SKETCH_CAPACITY);
            prop_assert!(counts.is_sorted_by(|left, right| left.count >= right.count));
            prop_assert!(sketch.max_uncounted() <= max_error);
            prop_assert_eq!(
                counts.iter().map(|count| count.count).sum::<u64>(),
                subjects.len() as u64
            );
            for counted in counts {
                let exact = refusals.remove(&counted.subject).unwrap_or_default();
                prop_assert!(counted.error <= max_error);
                prop_assert!(exact <= counted.count && exact >= counted.count - counted.error);
            }
            for (subject, exact) in refusals {
                prop_assert!(exact <= sketch.max_uncounted(), "{subject} was refused {exact} times");
            }
        }
    }
}
