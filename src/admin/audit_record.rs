//! [`AuditRecord`]: an action of an operator, its reason and its outcome.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Record of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Name of the operator.
    pub operator: String,
    /// Name of the action, such as `force-release`.
    pub action: String,
    /// Target of the action: the name of a lock, a queue or a policy with its subject, or an id.
    pub target: String,
    /// Reason that the operator gave.
    pub reason: String,
    /// End of the action, if it is known.
    pub outcome: AuditOutcome,
    /// Time of the store, in microseconds since 1970. Stored beside the record.
    #[serde(default)]
    pub recorded_us: u64,
}

/// End of an operator's action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuditOutcome {
    /// The action has begun, and its end is unknown: it runs, or its process has ended meanwhile.
    Begun,
    /// It was done.
    Done,
    /// The operator lacked the permission.
    Refused,
    /// It was not done, or may not have been; the text says why.
    Failed(String),
}

impl AuditRecord {
    /// Returns the time of the record.
    #[must_use]
    pub fn recorded_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.recorded_us)
    }
}
