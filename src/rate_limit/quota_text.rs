//! Text of a quota, such as `100 per 60s burst 20`, and its serde form.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::{
    quota::Quota,
    quota_document::{QuotaDocument, checked_burst, checked_quota},
};
use crate::{duration_text::DurationText, error::Error, store::QuotaRule};

impl fmt::Display for Quota {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rule) = self.to_rule() else { return formatter.write_str("unlimited") };
        write!(formatter, "{} per {}", self.limit(), DurationText(self.window()))?;
        match rule {
            QuotaRule::Fixed { .. } => Ok(()),
            QuotaRule::Sliding { .. } => formatter.write_str(" sliding"),
            QuotaRule::Gcra { limit, burst, .. } if burst == limit => formatter.write_str(" gcra"),
            QuotaRule::Gcra { burst, .. } => write!(formatter, " burst {burst}"),
        }
    }
}

/// Errors are of [`ErrorKind::Config`](crate::ErrorKind), and name the wrong part.
impl FromStr for Quota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_quota(text).map_err(|problem| Error::setting(format!("Quota: `{text}`: {problem}")))
    }
}

fn parse_quota(text: &str) -> Result<Quota, String> {
    const FORM: &str = "write it as `100 per 60s`, perhaps followed by `sliding`, `gcra` or \
                        `burst 20`, or as `unlimited`";
    let parts: Vec<&str> = text.split_ascii_whitespace().collect();
    let (limit, window, counting) = match parts[..] {
        ["unlimited"] => return Ok(Quota::unlimited()),
        [limit, "per", window, ref counting @ ..] => (limit, window, counting),
        _ => return Err(FORM.to_owned()),
    };
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
    let DurationText(window) = window.parse()?;
    let quota = checked_quota(number(limit)?, window)?;
    match *counting {
        [] => Ok(quota),
        ["sliding"] => Ok(quota.sliding()),
        ["gcra"] => Ok(quota.gcra()),
        ["burst", burst] => Ok(checked_burst(quota, number(burst)?)?),
        _ => Err(FORM.to_owned()),
    }
}

impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads the text, or the form in the store.
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An untagged enum would only say that no variant matches.
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map_err(de::Error::custom),
            document @ Value::Object(_) => {
                let document: QuotaDocument =
                    serde_json::from_value(document).map_err(de::Error::custom)?;
                document.try_into().map_err(de::Error::custom)
            }
            other => other.to_string().parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quota_survives_its_text() {
        let minute = Quota::requests(100).per(Duration::from_secs(60));
        for (quota, text) in [
            (minute, "100 per 60s"),
            (minute.sliding(), "100 per 60s sliding"),
            (minute.gcra(), "100 per 60s gcra"),
            (minute.burst(20), "100 per 60s burst 20"),
            (Quota::requests(0).per(Duration::from_micros(1_500)).gcra(), "0 per 1500us gcra"),
            (Quota::unlimited(), "unlimited"),
        ] {
            assert_eq!(quota.to_string(), text);
            assert_eq!(text.parse::<Quota>().expect(text), quota);
            let json = serde_json::to_string(&quota).expect("it has a JSON form");
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Quota>(&json).expect(&json), quota);
        }
        assert_eq!(
            "5 per 2min burst 5".parse::<Quota>().expect("a quota").to_string(),
            "5 per 120s gcra"
        );
    }

    #[test]
    fn error_names_the_wrong_part() {
        for (text, part) in [
            ("", "write it as"),
            ("100", "write it as"),
            ("100 per 60s twice", "write it as"),
            ("100 per 60s burst", "write it as"),
            ("100 per minute", "`minute` is no duration"),
            ("many per 60s", "`many` is no number"),
            ("-1 per 60s", "`-1` is no number"),
            ("1 per 0s", "window: 1 ms to a year"),
            ("1 per 366d", "window: 1 ms to a year"),
            ("1125899906842625 per 1s", "limit: at most 2^50"),
            ("1 per 1s burst 0", "burst: 1 to 2^50"),
        ] {
            let error = text.parse::<Quota>().expect_err(text);
            assert_eq!(error.kind(), crate::ErrorKind::Config);
            assert!(error.to_string().contains(part), "{error}");
            let json = serde_json::to_string(text).expect("a text");
            let error = serde_json::from_str::<Quota>(&json).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = serde_json::from_str::<Quota>("7").expect_err("a number").to_string();
        assert!(error.contains("`7`: write it as `100 per 60s`"), "{error}");
    }
}
