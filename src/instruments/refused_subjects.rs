//! [`RefusedSubjects`]: the subjects that a policy has refused most often of late.

use std::{
    collections::BTreeMap,
    mem,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{refusal_sketch::RefusalSketch, refused_subject::RefusedSubject};
use crate::key::Key;

/// Time for which one sketch counts. The current one and the last one are reported.
const SKETCH_TIME: Duration = Duration::from_secs(300);

/// Most subjects of a policy in a report.
const MAX_REPORTED: usize = 10;

/// Refusals of a policy by subject, in the last five to ten minutes.
///
/// A flood of refusals decides in less than a microsecond each, so no refusal waits for another
/// one: a refusal that finds the mutex locked is counted as `missed`, without its subject.
#[derive(Debug, Default)]
pub(super) struct RefusedSubjects {
    sketches: Mutex<RecentSketches>,
    /// Refusals since the current sketch began that are not in it.
    missed: AtomicU64,
}

#[derive(Debug, Default)]
struct RecentSketches {
    /// Start of the current sketch; `None` before the first refusal.
    started_at: Option<Instant>,
    current: RefusalSketch,
    last: RefusalSketch,
    /// Refusals that are not in the last sketch.
    missed_by_last: u64,
}

impl RefusedSubjects {
    pub(super) fn record(&self, subject: &Key) {
        let (hash, now) = (subject.fnv_hash(), Instant::now());
        match self.sketches.try_lock() {
            Some(mut sketches) => {
                sketches.begin_next(now, &self.missed);
                sketches.current.record(subject, hash);
            }
            None => {
                // Only the sum is read, so no other memory has to be in order.
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the most frequent subjects, with the most certain refusals first.
    pub(super) fn report(&self) -> Vec<RefusedSubject> {
        let mut sketches = self.sketches.lock();
        sketches.begin_next(Instant::now(), &self.missed);
        let missed = sketches.missed_by_last + self.missed.load(Ordering::Relaxed);
        let mut bounds: BTreeMap<&Key, (u64, u64)> = BTreeMap::new();
        let [current, last] = [&sketches.current, &sketches.last];
        for (sketch, other) in [(current, last), (last, current)] {
            for counted in sketch.counts() {
                let is_in_other =
                    other.counts().iter().any(|count| count.subject == counted.subject);
                let in_other = if is_in_other { 0 } else { other.max_uncounted() };
                let (min, max) = bounds.entry(&counted.subject).or_insert((0, missed));
                *min += counted.count - counted.error;
                *max += counted.count + in_other;
            }
        }
        let mut subjects: Vec<_> = bounds.into_iter().collect();
        subjects.sort_by_key(|(_, bounds)| std::cmp::Reverse(*bounds));
        let to_report = |(subject, (refusals, max_refusals)): (&Key, _)| RefusedSubject {
            subject: subject.operator_name().into_owned(),
            refusals,
            max_refusals,
        };
        subjects.into_iter().take(MAX_REPORTED).map(to_report).collect()
    }
}

impl RecentSketches {
    /// Begins the next sketch when the time of the current one has passed.
    fn begin_next(&mut self, now: Instant, missed: &AtomicU64) {
        let started_at = *self.started_at.get_or_insert(now);
        let elapsed = now.saturating_duration_since(started_at);
        if elapsed < SKETCH_TIME {
            return;
        }
        self.last = mem::take(&mut self.current);
        self.missed_by_last = missed.swap(0, Ordering::Relaxed);
        if elapsed >= 2 * SKETCH_TIME {
            (self.last, self.missed_by_last) = (RefusalSketch::default(), 0);
        }
        self.started_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(subjects: &RefusedSubjects, name: &str, refusals: u64) {
        (0..refusals).for_each(|_| subjects.record(&Key::custom(name)));
    }

    fn reported(subjects: &RefusedSubjects) -> Vec<(String, u64, u64)> {
        let report = subjects.report().into_iter();
        report.map(|each| (each.subject, each.refusals, each.max_refusals)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_forgotten_after_two_sketches() {
        let subjects = RefusedSubjects::default();
        record(&subjects, "ada", 3);
        tokio::time::advance(SKETCH_TIME).await;
        record(&subjects, "bob", 2);
        record(&subjects, "ada", 1);
        let (ada, bob) = (("ada".to_owned(), 4, 4), ("bob".to_owned(), 2, 2));
        assert_eq!(reported(&subjects), [ada, bob.clone()]);
        tokio::time::advance(SKETCH_TIME).await;
        assert_eq!(reported(&subjects), [bob, ("ada".to_owned(), 1, 1)]);
        tokio::time::advance(2 * SKETCH_TIME).await;
        assert_eq!(reported(&subjects), []);
    }

    #[test]
    fn refusal_without_the_mutex_widens_the_bounds() {
        let subjects = RefusedSubjects::default();
        record(&subjects, "ada", 3);
        let locked = subjects.sketches.lock();
        record(&subjects, "bob", 2);
        drop(locked);
        assert_eq!(reported(&subjects), [("ada".to_owned(), 3, 5)]);
    }

    #[test]
    fn frequent_subject_is_first_in_a_flood_of_others() {
        let subjects = RefusedSubjects::default();
        for number in 0..2_000 {
            record(&subjects, &number.to_string(), 1);
            record(&subjects, "ada", 1);
        }
        let report = reported(&subjects);
        assert_eq!(report.len(), MAX_REPORTED);
        let (name, refusals, max_refusals) = &report[0];
        assert_eq!((name.as_str(), *refusals), ("ada", 2_000));
        assert_eq!(*max_refusals, 2_000);
    }
}
