//! Statistics of the measurements.

use crate::acquire_event::AcquireEvent;

/// Returns the median; of an even number of values, the mean of the middle two; of none, NaN.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (count, middle) if count % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Returns the smallest and the largest value.
pub(crate) fn value_range(values: &[f64]) -> (f64, f64) {
    let smallest = values.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let largest = values.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::NAN);
    (smallest, largest)
}

/// Divides values of the same round, so that a slow minute of the machine affects both.
pub(crate) fn paired_ratios(numerators: &[f64], denominators: &[f64]) -> Vec<f64> {
    numerators
        .iter()
        .zip(denominators)
        .map(|(numerator, denominator)| numerator / denominator)
        .collect()
}

/// Returns a quantile of sorted values, in thousandths, by nearest rank; zero if there are none.
pub(crate) fn per_mille_value(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// Returns the largest share divided by the smallest; infinite if a share is zero.
pub(crate) fn max_min_ratio(shares: &[u64]) -> f64 {
    let (largest, smallest) = (shares.iter().max(), shares.iter().min());
    match (largest, smallest) {
        (Some(largest), Some(smallest)) if *largest > 0 => to_f64(*largest) / to_f64(*smallest),
        _ => f64::INFINITY,
    }
}

/// Counts acquisitions by another task than the one before, in events ordered by time. A task that
/// acquires its own lock again before a waiter wakes up does not hand it over and starves the
/// others.
pub(crate) fn count_holder_changes(events: &[AcquireEvent]) -> u64 {
    let changes = events.windows(2).filter(|pair| pair[0].task != pair[1].task);
    u64::try_from(changes.count()).unwrap_or(u64::MAX)
}

/// Counts acquisitions while another task still held the lock. A correct lock has none.
pub(crate) fn count_overlaps(events: &[AcquireEvent]) -> u64 {
    let overlaps = events
        .windows(2)
        .filter(|pair| pair[0].acquired_at + pair[0].held_for > pair[1].acquired_at);
    u64::try_from(overlaps.count()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds far below 2^53")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number as f64
}

pub(crate) fn nanos_to_millis(nanos: u64) -> f64 {
    to_f64(nanos) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire_events(spans: &[(u64, u64, u32)]) -> Vec<AcquireEvent> {
        spans
            .iter()
            .map(|&(acquired_at, held_for, task)| AcquireEvent {
                acquired_at,
                wait: 0,
                held_for,
                task,
            })
            .collect()
    }

    #[test]
    fn median_is_middle_or_mean_of_middle_two() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!((median(&[1.0, f64::INFINITY, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_pair_values_of_the_same_round() {
        assert_eq!(paired_ratios(&[10.0, 30.0], &[5.0, 10.0]), [2.0, 3.0]);
        assert_eq!(value_range(&[2.0, 3.0, 1.0]), (1.0, 3.0));
        assert!(value_range(&[]).0.is_nan());
    }

    #[test]
    fn per_mille_uses_nearest_rank() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!(per_mille_value(&sorted, 500), 100);
        assert_eq!(per_mille_value(&sorted, 990), 198);
        assert_eq!(per_mille_value(&sorted, 1000), 200);
        assert_eq!(per_mille_value(&[7], 1), 7);
        assert_eq!(per_mille_value(&[], 500), 0);
    }

    #[test]
    fn ratio_with_zero_share_is_infinite() {
        assert!((max_min_ratio(&[10, 15, 12]) - 1.5).abs() < f64::EPSILON);
        assert!(max_min_ratio(&[10, 0]).is_infinite());
        assert!(max_min_ratio(&[0, 0]).is_infinite());
        assert!(max_min_ratio(&[]).is_infinite());
    }

    #[test]
    fn reacquire_by_same_task_is_no_holder_change() {
        assert_eq!(
            count_holder_changes(&acquire_events(&[(1, 0, 1), (2, 0, 1), (3, 0, 2), (4, 0, 1)])),
            2
        );
        assert_eq!(count_holder_changes(&acquire_events(&[(1, 0, 1)])), 0);
        assert_eq!(count_holder_changes(&[]), 0);
    }

    #[test]
    fn overlapping_holds_are_counted() {
        assert_eq!(count_overlaps(&acquire_events(&[(10, 5, 1), (15, 5, 2), (30, 1, 1)])), 0);
        assert_eq!(count_overlaps(&acquire_events(&[(10, 6, 1), (15, 5, 2), (19, 1, 1)])), 2);
    }
}
