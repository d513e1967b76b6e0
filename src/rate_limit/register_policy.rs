//! Registration of a policy, to be reported to operators and changed by them.

use super::{
    engine::RateLimitEngine,
    policy_cost_and_reactions::{Policy, decode_name},
};
use crate::{
    durations::ceil_millis,
    instruments::DeployedPolicy,
    store::{QuotaRule, Store},
};

impl Policy {
    /// Registers the policy as deployed, and starts to follow its changes. `keys` says what
    /// requests are counted by, and `is_looked_up` whether the quota depends on the request.
    pub(super) fn register(&self, store: &Store, keys: String, is_looked_up: bool) {
        let quota = self.quota();
        let rule = quota.to_rule();
        let (counting, burst) = match rule {
            Some(QuotaRule::Fixed { .. }) => ("fixed", None),
            Some(QuotaRule::Sliding { .. }) => ("sliding", None),
            Some(QuotaRule::Gcra { burst, .. }) => ("gcra", Some(burst)),
            None => ("unlimited", None),
        };
        let deployed = DeployedPolicy {
            quota: quota.to_string(),
            counting: counting.to_owned(),
            limit: rule.map(|_| quota.limit()),
            window_ms: rule.map(|_| ceil_millis(quota.window())),
            burst,
            is_shadow: self.is_shadow(),
            is_looked_up,
            is_named: self.is_named,
            has_penalty: self.penalty.is_some(),
            keys,
        };
        store.counters().policies().add(&self.name, &decode_name(&self.name), deployed);
        RateLimitEngine::for_store(store).ensure_policy_follower(store);
    }
}
