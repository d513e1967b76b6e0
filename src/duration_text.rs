//! [`DurationText`]: a duration as people write it in a configuration.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Duration as a whole number and a unit, such as `60s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DurationText(pub(crate) Duration);

/// Units with their lengths in nanoseconds. A duration is written in the first one that divides it.
const WRITTEN_UNITS: [(&str, u128); 4] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Units that are read as well, with their lengths in seconds.
const LONG_UNITS: [(&str, u64); 3] = [("min", 60), ("h", 3_600), ("d", 86_400)];

impl fmt::Display for DurationText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let unit = WRITTEN_UNITS.into_iter().find(|(_, length)| nanos.is_multiple_of(*length));
        let (unit, length) = unit.unwrap_or(("ns", 1));
        write!(formatter, "{}{unit}", nanos / length)
    }
}

impl FromStr for DurationText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit_start = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_start);
        let number = number.parse::<u64>().ok();
        let duration = number.and_then(|number| match unit {
            "ms" => Some(Duration::from_millis(number)),
            "us" => Some(Duration::from_micros(number)),
            "ns" => Some(Duration::from_nanos(number)),
            "s" => Some(Duration::from_secs(number)),
            _ => {
                let (_, length) = LONG_UNITS.into_iter().find(|(name, _)| *name == unit)?;
                number.checked_mul(length).map(Duration::from_secs)
            }
        });
        let error = || format!("`{text}` is no duration such as 500ms, 60s, 10min, 24h or 7d");
        duration.map(Self).ok_or_else(error)
    }
}

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_survives_its_text() {
        for nanos in [0, 1, 1_500, 2_000_000, 1_500_000_000, 60_000_000_000, u64::MAX] {
            let duration = DurationText(Duration::from_nanos(nanos));
            assert_eq!(duration.to_string().parse(), Ok(duration));
        }
        assert_eq!("10min".parse(), Ok(DurationText(Duration::from_secs(600))));
        assert_eq!("7d".parse(), Ok(DurationText(Duration::from_secs(604_800))));
        for text in ["", "60", "s", "1.5s", "-1s", "1 s", "1m", "99999999999999999999s", "1é"] {
            assert!(text.parse::<DurationText>().is_err(), "{text}");
        }
        let overflow = format!("{}d", u64::MAX);
        assert!(overflow.parse::<DurationText>().is_err());
    }
}
