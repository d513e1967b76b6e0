//! [`LimitInspection`]: rest of a subject's quotas under a policy.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use serde::Serialize;

use super::{
    engine::PolicyCheck, fleet_policy::FleetPolicy, policy_change::PolicyChange,
    policy_cost_and_reactions::Policy, quota::Quota, subject_quota::SubjectQuota,
};
use crate::{
    error::Error,
    key::Key,
    store::{ChargeCommand, Store},
};

/// What a subject has left under a policy, for operators. Read by [`Store::inspect_limit`].
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LimitInspection {
    /// Name of the policy as in the code.
    pub policy: String,
    /// Name of the subject, as in [`Key::operator_name`].
    pub subject: String,
    /// The subject under each quota with which processes apply the policy: one, or several during a
    /// deployment; none if no process has the policy.
    pub quotas: Vec<SubjectQuota>,
}

impl Store {
    /// Returns the rest of a subject's quotas under a policy, by its name. It charges nothing.
    ///
    /// The processes say which quota they apply, as for [`Store::policies`], so it takes half a
    /// second at most. A quota from [`quota_by`](super::RateLimitLayer::quota_by) is not known to
    /// it; units that processes have [leased](Policy::quota_lease) count as spent. Counters of a
    /// [group](super::RateLimiter::group_by) are not found.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
    /// use lockgate::{Policy, Store};
    ///
    /// let store = Store::memory();
    /// let limiter = store.rate_limiter(Policy::new("100 per 60s".parse()?).with_name("search"));
    /// limiter.check("customer:7", 3).await?;
    /// let limit = store.inspect_limit("search", "customer:7").await?;
    /// assert_eq!(limit.quotas[0].remaining, Some(97));
    /// println!("{limit}"); // customer:7 has 97 of 100 per 60s left under search, ...
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Store::changed_policies`].
    pub async fn inspect_limit(
        &self,
        policy: &str,
        subject: impl Into<Key>,
    ) -> Result<LimitInspection, Error> {
        let subject = subject.into();
        let policies = self.policies().await?;
        let known = policies.iter().find(|known| known.name == policy);
        let applied = known.map_or_else(Vec::new, applied_policies);
        let readings = applied.into_iter().map(|policy| read_quota(self, policy, &subject));
        Ok(LimitInspection {
            policy: policy.to_owned(),
            subject: subject.operator_name().into_owned(),
            quotas: try_join_all(readings).await?,
        })
    }
}

/// Returns the policy with each quota that a process applies. Of a newer version, the text of a
/// quota may be unknown.
fn applied_policies(known: &FleetPolicy) -> Vec<Policy> {
    let change = known.change.unwrap_or_default();
    let mut applied: Vec<Policy> = Vec::new();
    for deployed in known.deployed.iter().map(|variant| &variant.policy) {
        let Ok(quota) = deployed.quota.parse::<Quota>() else { continue };
        let policy = Policy::new(quota);
        let policy = if deployed.is_named { policy.with_name(&known.name) } else { policy };
        let policy = if deployed.is_shadow { policy.shadow() } else { policy };
        // Only charges of a policy with blocks or a penalty look for blocks.
        let looks_for_blocks = deployed.has_penalty || change.has_blocks();
        let policy = policy.changed_by(&change.with_blocks(looks_for_blocks));
        if !applied.contains(&policy) {
            applied.push(policy);
        }
    }
    if let (true, Some(_)) = (known.deployed.is_empty(), change.new_quota()) {
        applied.push(not_deployed(&known.name, &change));
    }
    applied
}

/// Returns a policy that is changed before any process has it.
fn not_deployed(name: &str, change: &PolicyChange) -> Policy {
    Policy::new(Quota::unlimited()).with_name(name).changed_by(change)
}

async fn read_quota(store: &Store, policy: Policy, subject: &Key) -> Result<SubjectQuota, Error> {
    let policy = Arc::new(policy);
    let quota = policy.quota();
    let unread = SubjectQuota {
        quota: quota.to_string(),
        is_shadow: policy.is_shadow(),
        remaining: None,
        reset_after: Duration::ZERO,
        retry_after: Duration::ZERO,
        blocked_for: None,
    };
    if quota.is_zero() {
        let window = quota.window();
        return Ok(SubjectQuota {
            remaining: Some(0),
            reset_after: window,
            retry_after: window,
            ..unread
        });
    }
    let check = PolicyCheck::new(&policy, subject.clone(), 1);
    let Some(item) = check.charge_item() else { return Ok(unread) };
    let charge = ChargeCommand { tag: subject.clone(), items: Arc::new([item]), repetitions: 0 };
    let outcome = store.backend().charge(charge).await?;
    Ok(outcome.snapshots.first().map_or(unread.clone(), |snapshot| SubjectQuota {
        remaining: Some(snapshot.remaining),
        reset_after: snapshot.reset_after,
        retry_after: snapshot.retry_after,
        blocked_for: snapshot.blocked_for,
        ..unread
    }))
}

impl fmt::Display for LimitInspection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, subject, quotas } = self;
        if quotas.is_empty() {
            return write!(formatter, "no process that answered has a policy {policy}");
        }
        for (index, quota) in quotas.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{subject} {quota} under {policy}")?;
            if let Some(note) = quota.note() {
                write!(formatter, ", {note}")?;
            }
        }
        Ok(())
    }
}
