//! Reading of a request before anything is awaited: its keys, costs and quotas, and the decisions
//! that need no call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{
    quota_lookup::QuotaLookupResult,
    rate_limit_context::{RateLimitContext, find_store_and_engine, missing_store_reply},
    rate_limit_settings::{LayerPolicy, RateLimitSettings},
    rate_status::{PriorCharge, RateStatus, StoreIdentity},
};
use crate::{
    gate::{
        DirectRunRefusals, GateRequest, InitialVerdict, KeyError, ReplayMarker, RequestKind,
        StatusProbe, UnderLockMark, current_replay,
    },
    instruments::{DecisionOutcome, DecisionSource, PolicyResult},
    rate_limit::{
        engine::{CheckRequest, PolicyCheck, RateLimitEngine},
        exemption_rules::UncountedVerdict,
        policy_status::{PolicyStatus, policy_statuses},
        quota::Quota,
    },
    store::Store,
};

impl<R: RequestKind> RateLimitSettings<R> {
    /// Decides about a request as far as no call is needed, and reads the data of the other ones.
    pub(super) fn read_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<RateLimitContext, Option<RateStatus>> {
        if view.extension::<StatusProbe>().is_some() {
            return InitialVerdict::Skip;
        }
        let replay = current_replay(view);
        // A layer outside of the lock has decided when the request was accepted. A layer inside it
        // is not reached while the lock is held.
        if replay.as_ref().is_some_and(|replay| !replay.has_passed_lock()) {
            return InitialVerdict::Skip;
        }
        let mut request = match self.read_checks(view, replay.as_ref()) {
            Ok(request) => request,
            Err(verdict) => {
                if matches!(verdict, UncountedVerdict::Deny(_)) {
                    self.record_denial(view);
                }
                return verdict.into_initial_verdict();
            }
        };
        let request_store = self.find_request_store(view);
        let Some((store, engine)) = find_store_and_engine(self, &request_store) else {
            return InitialVerdict::Answer(missing_store_reply());
        };
        engine.apply_policy_changes(&mut request);
        let pending_quotas = self.resolve_costs_and_quotas(&mut request, view);
        let store_identity = StoreIdentity::of(store);
        let outer_status = RateStatus::from_outer_layer(view);
        if let Some(outer) = &outer_status
            && self.remove_already_charged(&mut request, store_identity, outer, &pending_quotas)
        {
            return InitialVerdict::Skip;
        }
        // A leased unit or a cached refusal decides without a wait. No quota refuses an accepted
        // request any more.
        if replay.is_none() && pending_quotas.is_empty() {
            if !self.may_settle()
                && let Some(decision) = engine.admit_from_lease(store, &request)
            {
                decision.record(store.counters(), &request, DecisionSource::Lease);
                let charged = (request, store_identity);
                let status = RateStatus::new(decision, charged, None, outer_status);
                status.insert_into(view);
                return InitialVerdict::PassLight(Some(status));
            }
            if let Some(decision) = engine.cached_refusal(&request) {
                decision.record(store.counters(), &request, DecisionSource::Memory);
                return self.refusal(&policy_statuses(&decision));
            }
        }
        // Only before a call to the store, which costs far more than the look.
        if UnderLockMark::is_set_on(view) {
            warn_inside_lock();
        }
        let direct_run = DirectRunRefusals::from_view(view);
        InitialVerdict::Enter(RateLimitContext {
            request_store,
            store_identity,
            request,
            pending_quotas,
            outer_status,
            replay,
            direct_run,
        })
    }

    /// Records a client on a deny list, for the first policy: no policy has decided.
    fn record_denial<V: GateRequest<NativeRequest = R::Native>>(&self, view: &V) {
        let request_store = self.find_request_store(view);
        let store = find_store_and_engine(self, &request_store).map(|(store, _)| store);
        if let (Some(store), Some(LayerPolicy { policy, .. })) = (store, self.policies.first()) {
            store.counters().record_policy_result(PolicyResult {
                policy: policy.name(),
                outcome: DecisionOutcome::Denied,
                source: DecisionSource::Memory,
                // The list refuses whatever the mode of the policies is.
                is_shadow: false,
                remaining_ratio: None,
            });
        }
    }

    /// Returns the store of the request and its engine, if the layer has no store of its own.
    fn find_request_store<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &V,
    ) -> Option<(Store, Arc<RateLimitEngine>)> {
        if self.configured_store().is_some() {
            return None;
        }
        let store = view.store()?;
        let engine = RateLimitEngine::for_store(&store);
        Some((store, engine))
    }

    /// Sets the costs and quotas that depend on the request. Returns the lookups of the quotas that
    /// are not cached, with the indices of their policies.
    #[expect(clippy::indexing_slicing, reason = "a check has the index of its policy")]
    fn resolve_costs_and_quotas<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        request: &mut CheckRequest,
        view: &mut V,
    ) -> Vec<(usize, BoxFuture<'static, Quota>)> {
        let mut pending_quotas = Vec::new();
        for check in &mut request.checks {
            let lookup = self.policies[check.policy_index].resolve_cost_and_quota(check, view);
            pending_quotas.extend(lookup.map(|lookup| (check.policy_index, lookup)));
        }
        pending_quotas
    }

    /// Reads the keys, unless the request is not counted.
    fn read_checks<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
        replay: Option<&ReplayMarker>,
    ) -> Result<CheckRequest, UncountedVerdict> {
        let sources = self.policies.iter().map(|layer_policy| &layer_policy.key_source);
        let denied_reply = || self.response.denied_reply();
        if let Some(verdict) = self.exemptions.check_before_keys(view, sources, denied_reply) {
            return Err(verdict);
        }
        let request = self.build_check_request(view).map_err(|key_error| match replay {
            // A run has no credentials.
            Some(_) => UncountedVerdict::Pass,
            None => UncountedVerdict::from_key_error(key_error),
        })?;
        let keys = request.checks.iter().map(|check| &check.key);
        if let Some(verdict) = self.exemptions.check_keys(keys, denied_reply) {
            return Err(verdict);
        }
        // An earlier attempt was charged.
        if replay.is_some_and(|replay| replay.job().attempt > 1) {
            return Err(UncountedVerdict::Pass);
        }
        Ok(request)
    }

    fn refusal<F, T>(&self, statuses: &[PolicyStatus<'_>]) -> InitialVerdict<F, T> {
        match statuses {
            // The reply depends on nothing but this status.
            [status] if self.policies.len() == 1 && !self.response.has_responder() => {
                InitialVerdict::SharedAnswer(
                    self.reply_cache.get_or_build(status, || self.response.refusal_reply(statuses)),
                )
            }
            _ => InitialVerdict::Answer(self.response.refusal_reply(statuses)),
        }
    }

    /// Reads the keys of the policies that have one, and the key of the group.
    fn build_check_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<CheckRequest, KeyError> {
        let mut checks = SmallVec::with_capacity(self.policies.len());
        let mut no_key_error = None;
        for (policy_index, layer_policy) in self.policies.iter().enumerate() {
            match layer_policy.key_source.read(view) {
                Ok(key) => {
                    let cost = layer_policy.policy.default_cost();
                    checks.push(PolicyCheck {
                        policy_index,
                        ..PolicyCheck::new(&layer_policy.policy, key, cost)
                    });
                }
                Err(key_error) if key_error.allows_passage() => no_key_error = Some(key_error),
                Err(key_error) => return Err(key_error),
            }
        }
        match no_key_error {
            Some(key_error) if checks.is_empty() => Err(key_error),
            _ => {
                let group_source = self.group_source.as_ref();
                let group = group_source.map(|source| source.read(view)).transpose()?;
                Ok(CheckRequest { checks, group })
            }
        }
    }
}

impl<R: RequestKind> RateLimitSettings<R> {
    /// Removes the checks that an outer layer has charged already. Returns true if none is left.
    fn remove_already_charged(
        &self,
        request: &mut CheckRequest,
        store_identity: StoreIdentity,
        outer_status: &RateStatus,
        pending_quotas: &[(usize, BoxFuture<'static, Quota>)],
    ) -> bool {
        let must_charge = |policy_index: usize| {
            // A pending quota may differ from the charged one, and no other layer adjusts the
            // charges of this one.
            pending_quotas.iter().any(|(pending_index, _)| *pending_index == policy_index)
                || self.policies.get(policy_index).is_some_and(LayerPolicy::may_settle)
        };
        let (group, mut checks) = (request.group.take(), std::mem::take(&mut request.checks));
        checks.retain(|check| {
            match outer_status.prior_charge(store_identity, group.as_ref(), check) {
                PriorCharge::NotCharged => true,
                prior_charge => {
                    warn_duplicate_policy(check.policy.name());
                    prior_charge == PriorCharge::Different || must_charge(check.policy_index)
                }
            }
        });
        *request = CheckRequest { checks, group };
        request.checks.is_empty()
    }
}

impl<R: RequestKind> LayerPolicy<R> {
    /// Sets the cost and quota that depend on the request. Returns the lookup if the quota is not
    /// cached.
    fn resolve_cost_and_quota<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        check: &mut PolicyCheck,
        view: &mut V,
    ) -> Option<BoxFuture<'static, Quota>> {
        if let Some(cost) = &self.cost_by {
            check.cost = cost(view.native_request());
        }
        check.may_end_early = self.may_settle() || self.quota_by.is_some();
        match self.quota_by.as_ref()?.get_or_fetch(&self.policy, &check.key, view.native_request())
        {
            QuotaLookupResult::Cached(quota) => {
                check.quota = quota;
                None
            }
            QuotaLookupResult::Pending(lookup) => Some(lookup),
        }
    }
}

/// Logs a warning, once per process.
fn warn_duplicate_policy(policy: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            policy,
            "two nested layers have a policy of the same name for the same key: the request is \
             charged once if both policies are equal, and twice if not; give one of them another \
             .policy_name(..), or remove it"
        );
    }
}

/// Logs a warning, once per process.
fn warn_inside_lock() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            layer = "RateLimitLayer",
            "the RateLimitLayer is inside a LockLayer: requests that meet a busy lock are not \
             charged, and their responses (409, 202) have no rate limit headers; put it outside \
             (axum: .layer() after the LockLayer, actix-web: .wrap() after it). Logged once"
        );
    }
}
