//! `QuotaEvent`: events of rate limits that processes log, one line each.

use std::{fmt, str::FromStr};

/// Event of one process, written and parsed as one line of space-separated parts. `client`
/// identifies the client within its process; each client makes one request after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaEvent {
    /// A client sends a request.
    Requested {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
    },
    /// The store admitted the request.
    Admitted {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
        /// Time of the call in ns.
        sent_at: u64,
        /// Least cost that may remain after later adjustments.
        cost: u64,
    },
    /// The store refused the request.
    Refused {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
    },
    /// The process admitted the request on its own while the store was unavailable.
    AdmittedLocally {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
        /// Time of the call in ns.
        sent_at: u64,
        /// Least cost that may remain after later adjustments.
        cost: u64,
    },
    /// Error: the request was not admitted, but may have been charged.
    Failed {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
    },
    /// Most that a request may cost with any outcome. Logged before the request is sent.
    CostLimit {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
        /// The largest possible cost.
        max_cost: u64,
    },
    /// The store reported the units spent of a key.
    SpentRead {
        /// Number of the client.
        client: u64,
        /// Key of the counter.
        key: String,
        /// Time of the call in ns.
        sent_at: u64,
        /// The reported units.
        spent: u64,
    },
    /// The process was stalled.
    Stalled {
        /// Start of the stall in ns.
        since: u64,
    },
}

impl fmt::Display for QuotaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested { client, key } => write!(f, "ask {client} {key}"),
            Self::Admitted { client, key, sent_at, cost } => {
                write!(f, "in {client} {key} {sent_at} {cost}")
            }
            Self::Refused { client, key } => write!(f, "out {client} {key}"),
            Self::AdmittedLocally { client, key, sent_at, cost } => {
                write!(f, "local {client} {key} {sent_at} {cost}")
            }
            Self::Failed { client, key } => write!(f, "fault {client} {key}"),
            Self::CostLimit { client, key, max_cost } => {
                write!(f, "may {client} {key} {max_cost}")
            }
            Self::SpentRead { client, key, sent_at, spent } => {
                write!(f, "spent {client} {key} {sent_at} {spent}")
            }
            Self::Stalled { since } => write!(f, "stall {since}"),
        }
    }
}

impl FromStr for QuotaEvent {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<_> = text.split(' ').collect();
        let number = |part: &str| part.parse().map_err(drop);
        let [verb, client, arguments @ ..] = &parts[..] else { return Err(()) };
        let (client, verb) = (number(client)?, *verb);
        Ok(match (verb, arguments) {
            ("ask", [key]) => Self::Requested { client, key: (*key).to_owned() },
            ("in", [key, sent_at, cost]) => Self::Admitted {
                client,
                key: (*key).to_owned(),
                sent_at: number(sent_at)?,
                cost: number(cost)?,
            },
            ("out", [key]) => Self::Refused { client, key: (*key).to_owned() },
            ("local", [key, sent_at, cost]) => Self::AdmittedLocally {
                client,
                key: (*key).to_owned(),
                sent_at: number(sent_at)?,
                cost: number(cost)?,
            },
            ("fault", [key]) => Self::Failed { client, key: (*key).to_owned() },
            ("may", [key, max_cost]) => {
                Self::CostLimit { client, key: (*key).to_owned(), max_cost: number(max_cost)? }
            }
            ("spent", [key, sent_at, spent]) => Self::SpentRead {
                client,
                key: (*key).to_owned(),
                sent_at: number(sent_at)?,
                spent: number(spent)?,
            },
            ("stall", []) => Self::Stalled { since: client },
            _ => return Err(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_events_round_trip_through_text() {
        let (client, key) = (3, || "k".to_owned());
        for event in [
            QuotaEvent::Requested { client, key: key() },
            QuotaEvent::Admitted { client, key: key(), sent_at: 5, cost: 2 },
            QuotaEvent::Refused { client, key: key() },
            QuotaEvent::AdmittedLocally { client, key: key(), sent_at: 5, cost: 1 },
            QuotaEvent::Failed { client, key: key() },
            QuotaEvent::CostLimit { client, key: key(), max_cost: 4 },
            QuotaEvent::SpentRead { client, key: key(), sent_at: 5, spent: 7 },
            QuotaEvent::Stalled { since: 9 },
        ] {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        assert_eq!("in 3 k 5".parse::<QuotaEvent>(), Err(()));
    }
}
