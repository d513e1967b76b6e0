//! [`PolicyRegistry`]: the policies of a store handle, and their refusals.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fnv::FnvHashMap;
use parking_lot::{Mutex, RwLock};

use super::{
    deployed_policy::DeployedPolicy, policy_report::PolicyReport, refused_subjects::RefusedSubjects,
};
use crate::key::Key;

/// Most policies that are registered. Names come from code, so a service has far fewer; the bound
/// is for a program that makes names from data.
const MAX_POLICIES: usize = 256;

/// Most different policies of one name.
const MAX_DEPLOYED: usize = 8;

/// Policies by the name that clients see. They are never removed: a limiter may be created for each
/// request.
#[derive(Debug, Default)]
pub(crate) struct PolicyRegistry {
    policies: RwLock<FnvHashMap<Arc<str>, Arc<RegisteredPolicy>>>,
    /// Names of the policies that operators have changed.
    changed: RwLock<BTreeSet<String>>,
}

#[derive(Debug)]
struct RegisteredPolicy {
    /// Name for operators.
    name: String,
    deployed: Mutex<Vec<DeployedPolicy>>,
    refusals: AtomicU64,
    refused: RefusedSubjects,
}

impl PolicyRegistry {
    /// Registers a policy, unless it is registered already or there is no room. `operator_name` is
    /// the name as in the code.
    pub(crate) fn add(&self, name: &Arc<str>, operator_name: &str, policy: DeployedPolicy) {
        let Some(registered) = self.find_or_create(name, operator_name) else { return };
        let mut deployed = registered.deployed.lock();
        if deployed.len() < MAX_DEPLOYED && !deployed.contains(&policy) {
            deployed.push(policy);
        }
    }

    /// Returns the policy of this name, or `None` if it is new and there is no room.
    fn find_or_create(
        &self,
        name: &Arc<str>,
        operator_name: &str,
    ) -> Option<Arc<RegisteredPolicy>> {
        {
            let policies = self.policies.read();
            let known = policies.get(name);
            // Limiters with names from data never wait for the write access.
            if known.is_some() || policies.len() >= MAX_POLICIES {
                return known.cloned();
            }
        }
        let mut policies = self.policies.write();
        if policies.len() >= MAX_POLICIES && !policies.contains_key(name) {
            return None;
        }
        let create = || Arc::new(RegisteredPolicy::new(operator_name));
        Some(Arc::clone(policies.entry(Arc::clone(name)).or_insert_with(create)))
    }

    /// Records a refusal. It costs a lookup, an increment and a position in a short list.
    pub(crate) fn record_refusal(&self, name: &str, subject: &Key) {
        if let Some(policy) = self.policies.read().get(name) {
            policy.refusals.fetch_add(1, Ordering::Relaxed);
            policy.refused.record(subject);
        }
    }

    /// Replaces the names of the policies that operators have changed.
    pub(crate) fn set_changed(&self, names: BTreeSet<String>) {
        *self.changed.write() = names;
    }

    /// Returns all policies, by name.
    pub(crate) fn report(&self) -> Vec<PolicyReport> {
        let changed = self.changed.read();
        let policies = self.policies.read();
        let reports = policies.iter().map(|(name, policy)| PolicyReport {
            name: policy.name.clone(),
            deployed: policy.deployed.lock().clone(),
            is_changed: changed.contains(&**name),
            refusals: policy.refusals.load(Ordering::Relaxed),
            top_refused: policy.refused.report(),
        });
        let mut reports: Vec<_> = reports.collect();
        reports.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        reports
    }
}

impl RegisteredPolicy {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            deployed: Mutex::default(),
            refusals: AtomicU64::new(0),
            refused: RefusedSubjects::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(registry: &PolicyRegistry, name: &str, limit: u64) {
        let policy = DeployedPolicy { limit: Some(limit), ..DeployedPolicy::default() };
        registry.add(&name.into(), name, policy);
    }

    #[test]
    fn policies_and_their_forms_are_bounded() {
        let registry = PolicyRegistry::default();
        for number in 0..MAX_POLICIES as u64 + 9 {
            add(&registry, &number.to_string(), 1);
            add(&registry, "0", number);
        }
        // Names without room, and the same form again.
        registry.record_refusal("264", &Key::custom("ada"));
        add(&registry, "0", 1);
        let report = registry.report();
        assert_eq!(report.len(), MAX_POLICIES);
        assert!(report.is_sorted_by(|left, right| left.name < right.name));
        assert_eq!(report[0].deployed.len(), MAX_DEPLOYED);
        assert_eq!(report.iter().map(|policy| policy.refusals).sum::<u64>(), 0);
    }
}
