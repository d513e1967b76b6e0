//! Random spread of pauses: processes that failed together do not retry together.

use std::time::Duration;

use uuid::Uuid;

/// Returns a random duration between 75 % and 125 % of `pause`.
pub(super) fn with_jitter(pause: Duration) -> Duration {
    let (_, random) = Uuid::new_v4().as_u64_pair();
    let range_us = u64::try_from((pause / 2).as_micros()).unwrap_or(u64::MAX);
    // 62 random bits as a fraction of 2^64, without the two bits of the UUID's variant.
    let offset_us = (u128::from(range_us) * u128::from(random << 2)) >> 64;
    pause - pause / 4 + Duration::from_micros(u64::try_from(offset_us).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_by_a_quarter_in_both_directions() {
        let pauses: Vec<_> =
            (0..500).map(|_| with_jitter(Duration::from_secs(4)).as_secs_f64()).collect();
        assert!(pauses.iter().all(|pause| (3.0..=5.0).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause < 3.2));
        assert!(pauses.iter().any(|pause| *pause > 4.8));
    }
}
