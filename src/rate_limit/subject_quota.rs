//! [`SubjectQuota`]: rest of a quota of a subject.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::json_time::{duration_ms, optional_duration_ms};

/// What a subject has left of a quota, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SubjectQuota {
    /// The quota as text, with the change of an operator if there is one.
    pub quota: String,
    /// True if the policy is in shadow mode.
    pub is_shadow: bool,
    /// Units that can be spent at once; `None` if the quota is unlimited.
    pub remaining: Option<u64>,
    /// Time until more units are available.
    #[serde(rename = "reset_after_ms", serialize_with = "duration_ms")]
    pub reset_after: Duration,
    /// Time until a request with a cost of 1 is admitted; zero if it is now.
    #[serde(rename = "retry_after_ms", serialize_with = "duration_ms")]
    pub retry_after: Duration,
    /// Remaining time of a block, by an operator or a penalty.
    #[serde(rename = "blocked_for_ms", serialize_with = "optional_duration_ms")]
    pub blocked_for: Option<Duration>,
}

impl SubjectQuota {
    /// Returns a remark about the next request: blocked, refused or in shadow mode. `None` if there
    /// is none.
    pub(super) fn note(&self) -> Option<String> {
        let note = match self.blocked_for {
            Some(block) => format!("blocked for {:.1} s", block.as_secs_f64()),
            None if !self.retry_after.is_zero() => {
                format!("refused for {:.1} s", self.retry_after.as_secs_f64())
            }
            None => return self.is_shadow.then(|| "in shadow mode".to_owned()),
        };
        Some(if self.is_shadow { format!("{note} if it were not in shadow mode") } else { note })
    }
}

impl fmt::Display for SubjectQuota {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remaining {
            Some(remaining) => write!(formatter, "has {remaining} of {} left", self.quota),
            None => formatter.write_str("has no limit"),
        }
    }
}
