//! `PolicyChange`: what an operator changes of a policy while processes run.

use serde::{Deserialize, Serialize, Serializer};

use super::{quota::Quota, quota_document::QuotaDocument};

/// Change of a policy while processes run. A setting that neither this nor an earlier change has
/// set is that of the code.
///
/// In JSON, a window is a whole number of milliseconds (rounded up), and unknown fields are errors:
///
/// ```
/// use std::time::Duration;
/// use lockgate::{Quota, rate_limit::PolicyChange};
///
/// let change = PolicyChange::new().quota(Quota::requests(5).per(Duration::from_secs(60)));
/// let json = r#"{"quota":{"counting":"fixed","limit":5,"window_ms":60000}}"#;
/// assert_eq!(serde_json::to_string(&change).unwrap(), json);
/// assert!(serde_json::from_str::<PolicyChange>(r#"{"quotas":null}"#).is_err());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "serialize_quota_document"
    )]
    quota: Option<Quota>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shadow: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_blocks: bool,
}

impl PolicyChange {
    /// Creates a change of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the quota. Default: that of the code. A quota that
    /// [`quota_by`](super::RateLimitLayer::quota_by) finds for a request stays.
    #[must_use]
    pub fn quota(self, quota: Quota) -> Self {
        Self { quota: Some(quota), ..self }
    }

    /// Turns [shadow mode](super::Policy::shadow) on or off. Default: as in the code.
    #[must_use]
    pub fn shadow(self, shadow: bool) -> Self {
        Self { shadow: Some(shadow), ..self }
    }

    /// Adds the settings of an earlier change that this one lacks.
    pub(crate) fn after(self, earlier: Self) -> Self {
        Self {
            quota: self.quota.or(earlier.quota),
            shadow: self.shadow.or(earlier.shadow),
            has_blocks: self.has_blocks || earlier.has_blocks,
        }
    }

    /// Sets whether subjects of the policy may be blocked, so that its charges look for blocks.
    pub(crate) fn with_blocks(self, has_blocks: bool) -> Self {
        Self { has_blocks, ..self }
    }

    /// Returns true if an operator has [blocked](crate::admin::Admin::block) a subject since the
    /// blocks of the policy were [cleared](crate::admin::Admin::clear_blocks).
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// Returns the new quota.
    #[must_use]
    pub fn new_quota(&self) -> Option<Quota> {
        self.quota
    }

    /// Returns the new shadow mode.
    #[must_use]
    pub fn new_shadow(&self) -> Option<bool> {
        self.shadow
    }
}

/// Keeps the form that processes of all versions read.
fn serialize_quota_document<S: Serializer>(
    quota: &Option<Quota>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    quota.map(QuotaDocument::from).serialize(serializer)
}
