//! Events of rate limits that processes log.

use std::{fmt, str::FromStr};

/// Event of one process, written and parsed as one line of words. The first number identifies the
/// client within its process; each client makes one request after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaEvent {
    /// A client sends a request: client, key.
    Requested(u64, String),
    /// The store admitted it: client, key, time of the call in ns, and the least cost that may
    /// remain after later adjustments.
    Admitted(u64, String, u64, u64),
    /// The store refused it: client, key.
    Refused(u64, String),
    /// The process admitted it on its own while the store was unavailable: fields as in
    /// [`Admitted`](Self::Admitted).
    AdmittedLocally(u64, String, u64, u64),
    /// Error: it was not admitted, but may have been charged: client, key.
    Failed(u64, String),
    /// Most that a request may cost with any outcome: client, key, cost. Logged before the request
    /// is sent.
    CostLimit(u64, String, u64),
    /// The store reported the units spent of a key: client, key, time of the call in ns, units.
    SpentRead(u64, String, u64, u64),
    /// The process was stalled since this time in ns.
    Stalled(u64),
}

impl fmt::Display for QuotaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(who, key) => write!(f, "ask {who} {key}"),
            Self::Admitted(who, key, sent, cost) => write!(f, "in {who} {key} {sent} {cost}"),
            Self::Refused(who, key) => write!(f, "out {who} {key}"),
            Self::AdmittedLocally(who, key, sent, cost) => {
                write!(f, "local {who} {key} {sent} {cost}")
            }
            Self::Failed(who, key) => write!(f, "fault {who} {key}"),
            Self::CostLimit(who, key, most) => write!(f, "may {who} {key} {most}"),
            Self::SpentRead(who, key, sent, spent) => write!(f, "spent {who} {key} {sent} {spent}"),
            Self::Stalled(since) => write!(f, "stall {since}"),
        }
    }
}

impl FromStr for QuotaEvent {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<_> = text.split(' ').collect();
        let number = |word: &str| word.parse().map_err(drop);
        let [verb, who, rest @ ..] = &words[..] else { return Err(()) };
        let (who, verb) = (number(who)?, *verb);
        Ok(match (verb, rest) {
            ("ask", [key]) => Self::Requested(who, (*key).to_owned()),
            ("in", [key, sent, cost]) => {
                Self::Admitted(who, (*key).to_owned(), number(sent)?, number(cost)?)
            }
            ("out", [key]) => Self::Refused(who, (*key).to_owned()),
            ("local", [key, sent, cost]) => {
                Self::AdmittedLocally(who, (*key).to_owned(), number(sent)?, number(cost)?)
            }
            ("fault", [key]) => Self::Failed(who, (*key).to_owned()),
            ("may", [key, most]) => Self::CostLimit(who, (*key).to_owned(), number(most)?),
            ("spent", [key, sent, spent]) => {
                Self::SpentRead(who, (*key).to_owned(), number(sent)?, number(spent)?)
            }
            ("stall", []) => Self::Stalled(who),
            _ => return Err(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_events_round_trip_through_text() {
        let key = || "k".to_owned();
        for event in [
            QuotaEvent::Requested(3, key()),
            QuotaEvent::Admitted(3, key(), 5, 2),
            QuotaEvent::Refused(3, key()),
            QuotaEvent::AdmittedLocally(3, key(), 5, 1),
            QuotaEvent::Failed(3, key()),
            QuotaEvent::CostLimit(3, key(), 4),
            QuotaEvent::SpentRead(3, key(), 5, 7),
            QuotaEvent::Stalled(9),
        ] {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        assert_eq!("in 3 k 5".parse::<QuotaEvent>(), Err(()));
    }
}
