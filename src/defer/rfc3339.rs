//! Formatting of timestamps by RFC 3339, in UTC with milliseconds.

use serde_json::Value;

/// Formats as `2026-01-31T12:00:00.000Z`. Returns null for 0, the store's value for "not yet".
pub(super) fn timestamp_or_null(us: u64) -> Value {
    if us == 0 { Value::Null } else { format_rfc3339(us).into() }
}

fn format_rfc3339(us: u64) -> String {
    let (seconds, millis) = (us / 1_000_000, us / 1000 % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Converts days since 1970 to a date of the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last day, within eras of 400 years,
/// which are all alike.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days_since_march_0 = days + 719_468;
    let (era, day) = (days_since_march_0 / 146_097, days_since_march_0 % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_match_the_calendar() {
        for (seconds, expected) in [
            (1, "1970-01-01T00:00:01.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_700_000_000, "2023-11-14T22:13:20.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(format_rfc3339(seconds * 1_000_000), expected);
        }
        assert_eq!(format_rfc3339(1_700_000_000_123_999), "2023-11-14T22:13:20.123Z");
        assert_eq!(timestamp_or_null(0), Value::Null);
    }

    #[test]
    fn consecutive_days_give_consecutive_dates() {
        let mut last = civil_date(0);
        assert_eq!(last, (1970, 1, 1));
        for days in 1..200_000 {
            let (year, month, day) = civil_date(days);
            let next = last.2 + 1 == day && last.0 == year && last.1 == month;
            let first = day == 1 && last.2 >= 28 && (last.1 % 12) + 1 == month;
            assert!(next || first, "{days}: {last:?} -> {:?}", (year, month, day));
            last = (year, month, day);
        }
    }
}
