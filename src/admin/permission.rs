//! [`Permission`]: what an operator may do.

use serde::{Deserialize, Serialize};

/// What an operator may do. Each permission includes those before it.
///
/// ```
/// use lockgate::admin::Permission;
///
/// assert!(Permission::Act > Permission::Look);
/// ```
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    /// Look at everything but payloads. The default: a console that is opened by mistake changes
    /// nothing.
    #[default]
    Look,
    /// Perform actions.
    Act,
    /// Read stored requests and payloads of tasks, which may contain personal data.
    SeePayloads,
}

impl Permission {
    /// Parses `look`, `act` or `see-payloads`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "look" => Some(Self::Look),
            "act" => Some(Self::Act),
            "see-payloads" => Some(Self::SeePayloads),
            _ => None,
        }
    }
}
