//! [`FleetPolicy`]: a policy over all processes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    changed_policies::ChangedPolicies, policy_change::PolicyChange, policy_variant::PolicyVariant,
};
use crate::{
    error::Error,
    instruments::{PolicyReport, RefusedSubject},
    store::{FleetReport, Store},
};

/// Most subjects of a policy.
const MAX_REFUSED: usize = 10;

/// Policy of a rate limit over all processes that answered. Read by [`Store::policies`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FleetPolicy {
    /// Name as in the code; without one, the policy is called after its quota.
    pub name: String,
    /// The policy as deployed. Several during a deployment that changes it, or if layers have
    /// different policies of one name; none if it is changed and no process has it.
    pub deployed: Vec<PolicyVariant>,
    /// Change of an operator.
    pub change: Option<PolicyChange>,
    /// Number of processes with the policy.
    pub processes: usize,
    /// Number of these processes that apply the change by now.
    pub changed_processes: usize,
    /// Sum of the [refusals](PolicyReport::refusals) of these processes.
    pub refusals: u64,
    /// Subjects that were refused most often in the last five to ten minutes, at most 10. The
    /// bounds are sums over the processes in which a subject is one of the first ten; the others
    /// may have refused it too.
    pub top_refused: Vec<RefusedSubject>,
}

impl Store {
    /// Returns the policies of all processes by name: as deployed, as changed by operators, and
    /// whom they refuse.
    ///
    /// Like [`Store::fleet`], it takes half a second at most. A process reports a policy from its
    /// first request on, or since a limiter, or a layer with a store of its own, was built; at most
    /// 256 policies.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
    /// use lockgate::{Policy, Store};
    ///
    /// let store = Store::memory();
    /// let limiter = store.rate_limiter(Policy::new("1 per 60s".parse()?).with_name("search"));
    /// limiter.check("customer:7", 1).await?;
    /// limiter.check("customer:7", 1).await?; // is refused
    ///
    /// let policies = store.policies().await?;
    /// assert_eq!((policies[0].name.as_str(), policies[0].refusals), ("search", 1));
    /// assert_eq!(policies[0].deployed[0].policy.quota, "1 per 60s");
    /// assert_eq!(policies[0].top_refused[0].subject, "customer:7");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Store::changed_policies`].
    pub async fn policies(&self) -> Result<Vec<FleetPolicy>, Error> {
        let (fleet, changed) = tokio::try_join!(self.fleet(), self.changed_policies())?;
        Ok(FleetPolicy::merge(&fleet, &changed))
    }
}

impl FleetPolicy {
    /// Merges the reports of all processes and the changes, by name.
    pub(crate) fn merge(fleet: &FleetReport, changed: &ChangedPolicies) -> Vec<Self> {
        let mut policies: BTreeMap<String, Self> = BTreeMap::new();
        for report in fleet.processes.iter().flat_map(|process| &process.policies) {
            policies.entry(report.name.clone()).or_default().add(report);
        }
        for (name, change) in changed.by_operator_name() {
            policies.entry(name).or_default().change = Some(change);
        }
        let named = policies.into_iter().map(|(name, mut policy)| {
            let bounds = |subject: &RefusedSubject| (subject.refusals, subject.max_refusals);
            policy.top_refused.sort_by_key(|subject| std::cmp::Reverse(bounds(subject)));
            policy.top_refused.truncate(MAX_REFUSED);
            Self { name, ..policy }
        });
        named.collect()
    }

    /// Adds the report of a process.
    fn add(&mut self, report: &PolicyReport) {
        self.processes += 1;
        self.changed_processes += usize::from(report.is_changed);
        self.refusals += report.refusals;
        for policy in &report.deployed {
            match self.deployed.iter_mut().find(|known| known.policy == *policy) {
                Some(known) => known.processes += 1,
                None => {
                    self.deployed.push(PolicyVariant { policy: policy.clone(), processes: 1 });
                }
            }
        }
        for refused in &report.top_refused {
            let mut known = self.top_refused.iter_mut();
            match known.find(|known| known.subject == refused.subject) {
                Some(known) => {
                    known.refusals += refused.refusals;
                    known.max_refusals += refused.max_refusals;
                }
                None => self.top_refused.push(refused.clone()),
            }
        }
    }
}
