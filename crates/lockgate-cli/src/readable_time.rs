//! Durations and times for people.

use std::time::{Duration, SystemTime};

/// Returns a duration as `8.2s`, `3m 5s`, `2h 10m` or `4d 3h`.
pub(crate) fn readable_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Returns how long ago a time was, or `-`.
pub(crate) fn ago(time: Option<SystemTime>) -> String {
    let elapsed = time.map(|time| time.elapsed().unwrap_or_default());
    elapsed.map_or_else(|| "-".to_owned(), |elapsed| format!("{} ago", readable_duration(elapsed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        let cases = [(8, "8.0s"), (185, "3m 5s"), (7_800, "2h 10m"), (356_400, "4d 3h")];
        for (seconds, text) in cases {
            assert_eq!(readable_duration(Duration::from_secs(seconds)), text);
        }
    }
}
