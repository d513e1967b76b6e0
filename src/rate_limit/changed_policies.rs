//! `ChangedPolicies`: the policies that operators have changed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{policy_change::PolicyChange, policy_cost_and_reactions::decode_name};
use crate::{
    error::{Error, ErrorKind},
    store::{Store, StoredPolicyChanges},
};

/// Most policies that are changed at once: every process holds all of them.
const MAX_CHANGED_POLICIES: usize = 1_000;

/// Attempts to change the document while other operators change it too.
const MAX_EDIT_ATTEMPTS: usize = 5;

/// Policies that operators have changed, as all processes of the namespace follow them. Read by
/// [`Store::changed_policies`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ChangedPolicies {
    /// Number of the last change; 0 if there was none.
    #[serde(skip)]
    pub version: u64,
    /// Changes by the [name](super::Policy::name) of the policy.
    pub policies: BTreeMap<String, PolicyChange>,
}

impl ChangedPolicies {
    /// Parses the stored document as a whole.
    pub(super) fn from_stored(stored: &StoredPolicyChanges) -> Result<Self, Error> {
        if stored.version == 0 {
            return Ok(Self::default());
        }
        let parsed: Self = serde_json::from_str(&stored.document).map_err(|source| {
            Error::new(ErrorKind::Protocol, "read_policy_changes").with_source(source)
        })?;
        Ok(Self { version: stored.version, ..parsed })
    }

    /// Returns the changes by the name of the policy as in the code.
    pub(super) fn by_operator_name(&self) -> impl Iterator<Item = (String, PolicyChange)> {
        self.policies.iter().map(|(name, change)| (decode_name(name).into_owned(), *change))
    }

    /// Returns the names of the policies with another quota or mode than in the code.
    pub(super) fn replaced_names(&self) -> BTreeSet<String> {
        let is_replaced =
            |change: &PolicyChange| change.new_quota().is_some() || change.new_shadow().is_some();
        let replaced = self.policies.iter().filter(|(_, change)| is_replaced(change));
        replaced.map(|(name, _)| name.clone()).collect()
    }

    fn to_stored(&self) -> Result<StoredPolicyChanges, Error> {
        if self.policies.len() > MAX_CHANGED_POLICIES {
            return Err(Error::setting(format!(
                "at most {MAX_CHANGED_POLICIES} policies can be changed; clear one first"
            )));
        }
        let document = serde_json::to_string(self).map_err(|source| {
            Error::new(ErrorKind::Protocol, "replace_policy_changes").with_source(source)
        })?;
        Ok(StoredPolicyChanges { version: self.version, document })
    }
}

impl Store {
    /// Reads the policies that operators have changed.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
    /// let changed = lockgate::Store::memory().changed_policies().await?;
    /// assert!(changed.policies.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Of the [store](ErrorKind). [`ErrorKind::Protocol`] also if a newer version of lockgate has
    /// written them.
    pub async fn changed_policies(&self) -> Result<ChangedPolicies, Error> {
        ChangedPolicies::from_stored(&self.backend().read_policy_changes().await?)
    }

    /// Changes the document of changed policies, and notifies all processes. They drop what they
    /// have cached and leased, also if `edit` changes nothing.
    pub(crate) async fn edit_changed_policies(
        &self,
        edit: impl Fn(&mut BTreeMap<String, PolicyChange>),
    ) -> Result<(), Error> {
        for _ in 0..MAX_EDIT_ATTEMPTS {
            let mut changed = self.changed_policies().await?;
            let old_version = changed.version;
            changed.version += 1;
            edit(&mut changed.policies);
            let new = changed.to_stored()?;
            if self.backend().replace_policy_changes(old_version, new).await? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "replace_policy_changes")
            .with_source("other operators change policies at the same time; try again"))
    }
}
