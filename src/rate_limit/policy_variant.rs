//! [`PolicyVariant`]: one of the forms in which a policy is deployed.

use serde::Serialize;

use crate::instruments::DeployedPolicy;

/// Policy as deployed, with the number of processes that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PolicyVariant {
    /// The policy.
    #[serde(flatten)]
    pub policy: DeployedPolicy,
    /// Number of processes.
    pub processes: usize,
}
