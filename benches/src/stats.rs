//! The arithmetic of the report, with nothing to measure in it.

use crate::record::Event;

/// The middle one; of an even number the mean of the two in the middle. Nothing of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (count, middle) if count % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The smallest and the largest.
pub(crate) fn spread(values: &[f64]) -> (f64, f64) {
    let smallest = values.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let largest = values.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::NAN);
    (smallest, largest)
}

/// Round by round: what was measured at nearly the same time is compared, and a slow minute of the
/// machine is in both.
pub(crate) fn paired_ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

/// The value below which so many of a thousand lie (nearest rank); zero of nothing.
pub(crate) fn per_mille(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// How uneven shares are: the largest over the smallest. Infinite if somebody got nothing.
pub(crate) fn unevenness(shares: &[u64]) -> f64 {
    let (largest, smallest) = (shares.iter().max(), shares.iter().min());
    match (largest, smallest) {
        (Some(largest), Some(smallest)) if *largest > 0 => float(*largest) / float(*smallest),
        _ => f64::INFINITY,
    }
}

/// How often the holder was another one than before. To take one's own lock again before anybody else
/// wakes up is no hand-over, and starves the rest. The events are in the order of time.
pub(crate) fn holder_changes(events: &[Event]) -> u64 {
    let changed = events.windows(2).filter(|pair| pair[0].task != pair[1].task);
    u64::try_from(changed.count()).unwrap_or(u64::MAX)
}

/// How often a lock was had while another task still held it: not once, or it is no lock.
pub(crate) fn overlaps(events: &[Event]) -> u64 {
    let overlapping = events.windows(2).filter(|pair| pair[0].at + pair[0].held > pair[1].at);
    u64::try_from(overlapping.count()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds far below 2^53")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// From nanoseconds.
pub(crate) fn millis(nanos: u64) -> f64 {
    float(nanos) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(spans: &[(u64, u64, u32)]) -> Vec<Event> {
        spans.iter().map(|&(at, held, task)| Event { at, wait: 0, held, task }).collect()
    }

    #[test]
    fn medians() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!((median(&[1.0, f64::INFINITY, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        assert_eq!(paired_ratios(&[10.0, 30.0], &[5.0, 10.0]), [2.0, 3.0]);
        assert_eq!(spread(&[2.0, 3.0, 1.0]), (1.0, 3.0));
        assert!(spread(&[]).0.is_nan());
    }

    #[test]
    fn quantiles_by_nearest_rank() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!(per_mille(&sorted, 500), 100);
        assert_eq!(per_mille(&sorted, 990), 198);
        assert_eq!(per_mille(&sorted, 1000), 200);
        assert_eq!(per_mille(&[7], 1), 7);
        assert_eq!(per_mille(&[], 500), 0);
    }

    #[test]
    fn shares() {
        assert!((unevenness(&[10, 15, 12]) - 1.5).abs() < f64::EPSILON);
        assert!(unevenness(&[10, 0]).is_infinite());
        assert!(unevenness(&[0, 0]).is_infinite());
        assert!(unevenness(&[]).is_infinite());
    }

    #[test]
    fn taking_it_again_is_no_change() {
        assert_eq!(holder_changes(&held(&[(1, 0, 1), (2, 0, 1), (3, 0, 2), (4, 0, 1)])), 2);
        assert_eq!(holder_changes(&held(&[(1, 0, 1)])), 0);
        assert_eq!(holder_changes(&[]), 0);
    }

    #[test]
    fn two_holders_at_once_are_seen() {
        assert_eq!(overlaps(&held(&[(10, 5, 1), (15, 5, 2), (30, 1, 1)])), 0);
        assert_eq!(overlaps(&held(&[(10, 6, 1), (15, 5, 2), (19, 1, 1)])), 2);
    }
}
