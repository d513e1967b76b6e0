//! Settings of a layer: its policies, and the sources of their inputs.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{quota_lookup::QuotaLookup, refusal_reply_cache::RefusalReplyCache};
use crate::{
    gate::{KeySource, RequestKind},
    rate_limit::{
        engine::RateLimitEngine, exemption_rules::ExemptionRules,
        policy_cost_and_reactions::Policy, response_options::ResponseOptions,
    },
    store::Store,
};

/// All settings of a layer.
pub(super) struct RateLimitSettings<R: RequestKind> {
    /// At least one.
    pub(super) policies: Vec<LayerPolicy<R>>,
    pub(super) group_source: Option<KeySource<R>>,
    pub(super) store: Option<Store>,
    /// Engine of `store`.
    pub(super) engine: OnceLock<Arc<RateLimitEngine>>,
    /// Set once the policies are registered for operators.
    pub(super) registered: OnceLock<()>,
    pub(super) exemptions: ExemptionRules,
    pub(super) response: ResponseOptions,
    /// Replies made with these settings.
    pub(super) reply_cache: RefusalReplyCache,
}

type CostFn<N> = dyn Fn(&N) -> u64 + Send + Sync;
type RefundPredicate = dyn Fn(u16) -> bool + Send + Sync;

/// One policy of a layer.
pub(super) struct LayerPolicy<R: RequestKind> {
    pub(super) key_source: KeySource<R>,
    pub(super) policy: Arc<Policy>,
    pub(super) quota_by: Option<Arc<QuotaLookup<R::Native>>>,
    pub(super) cost_by: Option<Arc<CostFn<R::Native>>>,
    pub(super) refund_on: Option<Arc<RefundPredicate>>,
    pub(super) handler_sets_cost: bool,
}

impl<R: RequestKind> LayerPolicy<R> {
    pub(super) fn new(key_source: KeySource<R>, policy: Policy) -> Self {
        let policy = Arc::new(policy);
        let (quota_by, cost_by, refund_on) = (None, None, None);
        Self { key_source, policy, quota_by, cost_by, refund_on, handler_sets_cost: false }
    }

    /// Returns true if both policies share a counter, or the name that clients see, and their key.
    fn conflicts_with(&self, other: &Self) -> bool {
        self.policy.conflicts_with(&other.policy)
            && self.key_source.reads_same_key(&other.key_source)
    }

    /// Returns true if charges may be adjusted after the response.
    pub(super) fn may_settle(&self) -> bool {
        self.refund_on.is_some() || self.handler_sets_cost
    }
}

impl<R: RequestKind> RateLimitSettings<R> {
    /// Adds a policy. Without a name of its own it is called differently from the others.
    pub(super) fn add_policy(&mut self, mut added: LayerPolicy<R>) {
        let others = self.policies.iter().map(|each| &each.policy);
        added.policy = Arc::new(Policy::clone(&added.policy).distinguished_from(&others));
        self.policies.push(added);
    }

    /// Adds a policy under the key of the last one. Returns the name of a policy of that key with
    /// which it conflicts.
    pub(super) fn add_policy_of_last_key(&mut self, policy: Policy) -> Result<(), String> {
        let Some(last) = self.policies.last() else { return Ok(()) };
        let added = LayerPolicy::new(last.key_source.clone(), policy);
        if let Some(other) = self.policies.iter().find(|other| added.conflicts_with(other)) {
            return Err(other.policy.name().to_owned());
        }
        self.add_policy(added);
        Ok(())
    }

    /// Returns the name of a policy that conflicts with a later one. Names and quotas may have
    /// changed since they were added.
    pub(super) fn conflicting_policy_name(&self) -> Option<&str> {
        let mut policies = self.policies.iter();
        while let Some(policy) = policies.next() {
            if policies.clone().any(|later| later.conflicts_with(policy)) {
                return Some(policy.policy.name());
            }
        }
        None
    }

    /// Registers the policies with the first store that the layer meets, to be reported to
    /// operators.
    pub(super) fn register_policies(&self, store: &Store) {
        self.registered.get_or_init(|| {
            let group = self.group_source.as_ref().map(KeySource::description);
            for LayerPolicy { key_source, policy, quota_by, .. } in &self.policies {
                let mut keys = key_source.description();
                if let Some(group) = &group {
                    keys = format!("{keys}, grouped by {group}");
                }
                policy.register(store, keys, quota_by.is_some());
            }
        });
    }

    pub(super) fn may_settle(&self) -> bool {
        self.policies.iter().any(LayerPolicy::may_settle)
    }

    /// Returns the layer's own store, if it has one, and its engine. They are borrowed: a clone or
    /// a lookup would touch a reference count or a lock shared by all requests.
    pub(super) fn configured_store(&self) -> Option<StoreAndEngine<'_>> {
        let store = self.store.as_ref()?;
        Some((store, self.engine.get_or_init(|| RateLimitEngine::for_store(store))))
    }
}

/// Store that counts the requests, and its engine.
pub(super) type StoreAndEngine<'a> = (&'a Store, &'a Arc<RateLimitEngine>);

impl<R: RequestKind> Clone for LayerPolicy<R> {
    fn clone(&self) -> Self {
        Self {
            key_source: self.key_source.clone(),
            policy: Arc::clone(&self.policy),
            quota_by: self.quota_by.clone(),
            cost_by: self.cost_by.clone(),
            refund_on: self.refund_on.clone(),
            handler_sets_cost: self.handler_sets_cost,
        }
    }
}

impl<R: RequestKind> Clone for RateLimitSettings<R> {
    fn clone(&self) -> Self {
        Self {
            policies: self.policies.clone(),
            group_source: self.group_source.clone(),
            store: self.store.clone(),
            engine: OnceLock::new(),
            registered: OnceLock::new(),
            exemptions: self.exemptions.clone(),
            response: self.response.clone(),
            reply_cache: RefusalReplyCache::default(),
        }
    }
}

impl<R: RequestKind> fmt::Debug for LayerPolicy<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerPolicy")
            .field("key_source", &self.key_source)
            .field("policy", &self.policy)
            .field("quota_by", &self.quota_by.is_some())
            .field("cost_by", &self.cost_by.is_some())
            .field("refund_on", &self.refund_on.is_some())
            .field("handler_sets_cost", &self.handler_sets_cost)
            .finish()
    }
}

impl<R: RequestKind> fmt::Debug for RateLimitSettings<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitSettings")
            .field("policies", &self.policies)
            .field("group_source", &self.group_source)
            .field("exemptions", &self.exemptions)
            .field("response", &self.response)
            .finish_non_exhaustive()
    }
}
