//! Actions on the policies of rate limits.

use super::{admin_error::AdminError, admin_handle::Admin};
use crate::{
    key::Key,
    rate_limit::{Policy, PolicyChange, Quota},
};

impl Admin {
    /// Changes a policy in all processes, which follow within a second, until it is
    /// [cleared](Self::clear_policy). It replaces an earlier change of the policy.
    ///
    /// `policy` is its [name](Policy::with_name); one without a name is called after its quota in
    /// the code, such as `100-per-60s`. A name that no process knows yet is no error: it may be
    /// deployed later.
    ///
    /// Usage stays, unless the new quota counts in another way (fixed window, sliding window, GCRA).
    /// Units leased under the old quota are returned, and cached refusals are dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use lockgate::{Quota, Store, admin::{Operator, Permission}, rate_limit::PolicyChange};
    ///
    /// let store = Store::memory();
    /// let admin = store.admin(Operator::new("ada", Permission::Act));
    /// let change = PolicyChange::new().quota(Quota::requests(5).per(Duration::from_secs(60)));
    /// admin.set_policy("search", change, "the index is being rebuilt").await?;
    /// assert_eq!(store.changed_policies().await?.policies["search"], change);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AdminError::Invalid`] for a change of nothing; others as in [`AdminError`].
    pub async fn set_policy(
        &self,
        policy: &str,
        change: PolicyChange,
        reason: &str,
    ) -> Result<(), AdminError> {
        let set = async {
            if change == PolicyChange::new() {
                return Err(AdminError::Invalid("set a quota or the shadow mode".to_owned()));
            }
            let name = named(policy).name().to_owned();
            let insert = |policies: &mut std::collections::BTreeMap<_, _>| {
                policies.insert(name.clone(), change);
            };
            Ok(self.store.edit_changed_policies(insert).await?)
        };
        self.act("set-policy", policy, reason, set).await
    }

    /// Gives a policy the quota and the mode of the code again, in all processes.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn clear_policy(&self, policy: &str, reason: &str) -> Result<(), AdminError> {
        let clear = async {
            let name = named(policy).name().to_owned();
            Ok(self
                .store
                .edit_changed_policies(|policies| {
                    policies.remove(&name);
                })
                .await?)
        };
        self.act("clear-policy", policy, reason, clear).await
    }

    /// Resets the usage and the penalties of a subject in a policy, in all processes: like
    /// [`RateLimiter::reset`](crate::RateLimiter::reset), but they also drop their cached refusals
    /// and return their leased units. The policy must have a [name](Policy::with_name). Counters of
    /// a [group](crate::RateLimiter::group_by) are not found.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn reset_limit(
        &self,
        policy: &str,
        subject: impl Into<Key>,
        reason: &str,
    ) -> Result<(), AdminError> {
        let subject = subject.into();
        let reset = async {
            // The policy may count in any way: an operator knows only its name.
            let minute = Quota::requests(1).per(std::time::Duration::from_secs(60));
            for quota in [minute, minute.sliding(), minute.gcra()] {
                let policy = Policy::new(quota).with_name(policy);
                self.store.rate_limiter(policy).reset(subject.clone()).await?;
            }
            // A new version makes all processes drop what they have cached.
            Ok(self.store.edit_changed_policies(|_| {}).await?)
        };
        self.act("reset-limit", &format!("{policy} {subject}"), reason, reset).await
    }
}

/// Returns a policy of this name: names are encoded in documents and keys.
fn named(policy: &str) -> Policy {
    Policy::new(Quota::unlimited()).with_name(policy)
}
