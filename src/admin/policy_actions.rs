//! Actions on the policies of rate limits.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{admin_error::AdminError, admin_handle::Admin};
use crate::{
    durations::MAX_DURATION,
    key::Key,
    rate_limit::{Policy, PolicyChange, Quota},
    store::{Algorithm, CounterName},
};

impl Admin {
    /// Changes a policy in all processes, which follow within a second, until it is
    /// [cleared](Self::clear_policy). A setting that the change lacks stays as an earlier change
    /// has set it, also if another operator changes the policy at the same time.
    ///
    /// `policy` is its [name](Policy::with_name); one without a name is called after its quota in
    /// the code, such as `100-per-60s`. A name that no process knows yet is no error: it may be
    /// deployed later.
    ///
    /// Usage stays, unless the new quota counts in another way (fixed window, sliding window,
    /// GCRA). Units leased under the old quota are returned, and cached refusals are dropped.
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
            let insert = |policies: &mut BTreeMap<String, PolicyChange>| {
                let earlier = policies.entry(name.clone()).or_default();
                *earlier = change.after(*earlier);
            };
            Ok(self.store.edit_changed_policies(insert).await?)
        };
        self.act("set-policy", policy, reason, set).await
    }

    /// Gives a policy the quota and the mode of the code again, in all processes. Its
    /// [blocks](Self::block) stay; [`clear_blocks`](Self::clear_blocks) ends them.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn clear_policy(&self, policy: &str, reason: &str) -> Result<(), AdminError> {
        let keep_blocks =
            |change: PolicyChange| PolicyChange::new().with_blocks(change.has_blocks());
        self.act("clear-policy", policy, reason, self.shrink_change(policy, keep_blocks)).await
    }

    /// Ends all [blocks](Self::block) of a policy, in all processes: its charges look for none
    /// until the next one, so its quota is leased and its refusals are cached again. A block that
    /// [`unblock`](Self::unblock) has not ended applies again after the next one, if its time is
    /// not over.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn clear_blocks(&self, policy: &str, reason: &str) -> Result<(), AdminError> {
        let drop_blocks = |change: PolicyChange| change.with_blocks(false);
        self.act("clear-blocks", policy, reason, self.shrink_change(policy, drop_blocks)).await
    }

    /// Removes a part of the change of a policy, and the entry if nothing is left.
    async fn shrink_change(
        &self,
        policy: &str,
        shrink: impl Fn(PolicyChange) -> PolicyChange,
    ) -> Result<(), AdminError> {
        let name = named(policy).name().to_owned();
        let edit = |policies: &mut BTreeMap<String, PolicyChange>| {
            let rest = policies.remove(&name).map(&shrink);
            if let Some(rest) = rest.filter(|rest| *rest != PolicyChange::new()) {
                policies.insert(name.clone(), rest);
            }
        };
        Ok(self.store.edit_changed_policies(edit).await?)
    }

    /// Resets the usage and the penalties of a subject in a policy, in all processes: like
    /// [`RateLimiter::reset`](crate::RateLimiter::reset), but they also drop their cached refusals
    /// and return their leased units. The policy must have a [name](Policy::with_name). Counters of
    /// a [group](crate::RateLimiter::group_by) are not found.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if no process that answers has a policy of this name, operators
    /// have not changed one, or it has no name of its own; others as in [`AdminError`]. A process
    /// reports a policy from its first request on.
    pub async fn reset_limit(
        &self,
        policy: &str,
        subject: impl Into<Key>,
        reason: &str,
    ) -> Result<(), AdminError> {
        let subject = subject.into();
        let reset = async {
            let counters = self.counters_of(policy, &subject).await?;
            self.store.backend().reset_counters(subject.clone(), counters).await?;
            // A new version makes all processes drop what they have cached.
            Ok(self.store.edit_changed_policies(|_| {}).await?)
        };
        self.act("reset-limit", &target_of(policy, &subject), reason, reset).await
    }

    /// Refuses all requests of a subject in a policy for this time (1 ms to a year), in all
    /// processes within a second, as by a [penalty](Policy::penalty): 429 with `Retry-After`. A
    /// longer or shorter block replaces it, and [`unblock`](Self::unblock) ends it. The policy must
    /// have a [name](Policy::with_name). Counters of a [group](crate::RateLimiter::group_by) are
    /// not found.
    ///
    /// From the first block on until [`clear_blocks`](Self::clear_blocks), the policy is checked
    /// like one with a penalty: its quota is not leased, and its refusals are not cached.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if no process that answers has a policy of this name, operators
    /// have not changed one, or it has no name of its own; others as in [`AdminError`]. A process
    /// reports a policy from its first request on.
    pub async fn block(
        &self,
        policy: &str,
        subject: impl Into<Key>,
        duration: Duration,
        reason: &str,
    ) -> Result<(), AdminError> {
        let subject = subject.into();
        let block = async {
            if duration < Duration::from_millis(1) || duration > MAX_DURATION {
                return Err(AdminError::Invalid("block for 1 ms to a year".to_owned()));
            }
            let counters = self.counters_of(policy, &subject).await?;
            self.store.backend().block_counters(subject.clone(), counters, duration).await?;
            let name = named(policy).name().to_owned();
            let mark = |policies: &mut BTreeMap<String, PolicyChange>| {
                let change = policies.entry(name.clone()).or_default();
                *change = change.with_blocks(true);
            };
            // Last: leased units are spent until the processes know of the new version.
            Ok(self.store.edit_changed_policies(mark).await?)
        };
        let target = format!("{} for {duration:?}", target_of(policy, &subject));
        self.act("block", &target, reason, block).await
    }

    /// Ends the block of a subject in a policy, be it by an operator or by a penalty, and forgets
    /// its refusals.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if no process that answers has a policy of this name, operators
    /// have not changed one, or it has no name of its own; others as in [`AdminError`]. A process
    /// reports a policy from its first request on.
    pub async fn unblock(
        &self,
        policy: &str,
        subject: impl Into<Key>,
        reason: &str,
    ) -> Result<(), AdminError> {
        let subject = subject.into();
        let unblock = async {
            let counters = self.counters_of(policy, &subject).await?;
            let backend = self.store.backend();
            backend.block_counters(subject.clone(), counters, Duration::ZERO).await?;
            Ok(self.store.edit_changed_policies(|_| {}).await?)
        };
        self.act("unblock", &target_of(policy, &subject), reason, unblock).await
    }

    /// Returns the counters of a subject. The policy may count in any way: an operator knows its
    /// name only, and may mistype it.
    async fn counters_of(
        &self,
        policy: &str,
        subject: &Key,
    ) -> Result<Vec<CounterName>, AdminError> {
        let policies = self.store.policies().await?;
        let Some(known) = policies.iter().find(|known| known.name == policy) else {
            return Err(AdminError::NotPossible(format!(
                "no process has a policy {policy}; a process reports its policies from their first \
                 request on"
            )));
        };
        let deployed = &known.deployed;
        if !deployed.is_empty() && deployed.iter().all(|variant| !variant.policy.is_named) {
            return Err(AdminError::NotPossible(format!(
                "the policy {policy} has no name of its own, so its counters are not found; give \
                 it one by Policy::with_name"
            )));
        }
        let policy = named(policy);
        let counter = |algorithm| CounterName {
            policy: Arc::clone(policy.counter_name()),
            subject: subject.clone(),
            algorithm,
        };
        Ok([Algorithm::Fixed, Algorithm::Sliding, Algorithm::Gcra].map(counter).into())
    }
}

/// Names a subject in the audit log as operators type it.
fn target_of(policy: &str, subject: &Key) -> String {
    format!("{policy} {}", subject.operator_name())
}

/// Returns a policy of this name: names are encoded in documents and keys.
fn named(policy: &str) -> Policy {
    Policy::new(Quota::unlimited()).with_name(policy)
}
