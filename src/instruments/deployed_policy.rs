//! [`DeployedPolicy`]: a policy as the code of a process has it.

use serde::{Deserialize, Serialize};

/// Policy of a rate limit as deployed, without the changes of operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DeployedPolicy {
    /// Quota as text, such as `100 per 60s burst 20`.
    pub quota: String,
    /// `fixed`, `sliding`, `gcra` or `unlimited`.
    pub counting: String,
    /// Number of requests per window; `None` if the quota is unlimited.
    pub limit: Option<u64>,
    /// Length of the window in milliseconds, rounded up; `None` if the quota is unlimited.
    pub window_ms: Option<u64>,
    /// Most requests at once, under GCRA.
    pub burst: Option<u64>,
    /// True if it is in shadow mode: counted and reported, but not enforced.
    pub is_shadow: bool,
    /// True if the quota of a request is looked up, so that it may differ.
    pub is_looked_up: bool,
    /// True if the policy has a name of its own: only then are its counters found by the name.
    pub is_named: bool,
    /// True if it has a penalty, which blocks subjects that are refused too often.
    pub has_penalty: bool,
    /// What its requests are counted by, such as `header x-api-key` or `client address`.
    pub keys: String,
}
