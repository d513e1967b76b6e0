//! [`PolicyReport`]: what a process says of a policy.

use serde::{Deserialize, Serialize};

use super::{deployed_policy::DeployedPolicy, refused_subject::RefusedSubject};

/// A policy of a process, by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PolicyReport {
    /// Name as in the code; without one, the policy is called after its quota.
    pub name: String,
    /// The policy as deployed. Several, if layers have different policies of one name; at most 8.
    pub deployed: Vec<DeployedPolicy>,
    /// True if the process applies a change of an operator.
    pub is_changed: bool,
    /// Number of refusals since the policy was first used. In shadow mode, requests that would have
    /// been refused.
    pub refusals: u64,
    /// Subjects that were refused most often in the last five to ten minutes, at most 10.
    pub top_refused: Vec<RefusedSubject>,
}
