//! Data read from a request before anything is awaited.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{
    quota_lookup::QuotaLookupResult,
    rate_limit_settings::{LayerPolicy, RateLimitSettings, StoreAndEngine},
    rate_limit_ticket::policy_statuses,
    rate_status::{PriorCharge, RateStatus, StoreIdentity},
};
use crate::{
    gate::{
        GateRequest, InitialVerdict, KeyError, RefusalTracker, ReplayMarker, RequestKind,
        current_replay,
    },
    rate_limit::{
        engine::{CheckRequest, PolicyCheck, RateLimitEngine},
        policy_status::PolicyStatus,
        quota::Quota,
    },
    reply::Reply,
    store::Store,
};

const LAYER_NAME: &str = "RateLimitLayer";

/// Data of a request that the gate needs.
pub struct RateLimitContext {
    /// Store of the request, if the layer has none of its own.
    request_store: Option<(Store, Arc<RateLimitEngine>)>,
    /// Identity of that store, or of the layer's own.
    pub(super) store_identity: StoreIdentity,
    pub(super) request: CheckRequest,
    /// Policies with a quota to be looked up, by index, and the lookups.
    pub(super) pending_quotas: Vec<(usize, BoxFuture<'static, Quota>)>,
    pub(super) outer_status: Option<RateStatus>,
    /// Run of a deferred request that was not charged yet.
    pub(super) replay: Option<ReplayMarker>,
    /// Direct run that the request belongs to.
    pub(super) remembered_run: Option<RefusalTracker>,
}

impl<R: RequestKind> RateLimitSettings<R> {
    #[expect(clippy::indexing_slicing, reason = "a check has the index of its limit")]
    pub(super) fn read_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<RateLimitContext, Option<RateStatus>> {
        let run = current_replay(view);
        // A layer outside of the lock has decided when the request was accepted. A layer inside it
        // is not reached while the lock is held.
        if run.as_ref().is_some_and(|run| !run.has_passed_lock()) {
            return InitialVerdict::Skip;
        }
        let sources = self.policies.iter().map(|limit| &limit.key_source);
        if let Some(asked) = self.response.check_before_keys(view, sources) {
            return asked;
        }
        // No quota refuses an accepted request any more.
        let asks = run.is_none();
        let mut ask = match self.build_check_request(view) {
            Ok(read) => read,
            // A run has no credentials.
            Err(_) if !asks => return InitialVerdict::Skip,
            Err(fault) => {
                return fault
                    .into_reply(LAYER_NAME)
                    .map_or(InitialVerdict::Skip, InitialVerdict::Answer);
            }
        };
        let keys = ask.checks.iter().map(|each| &each.key);
        if let Some(asked) = self.response.check_keys(keys) {
            return asked;
        }
        // An earlier attempt was charged.
        if run.as_ref().is_some_and(|run| run.job().attempt > 1) {
            return InitialVerdict::Skip;
        }
        let found = match self.configured_store() {
            Some(_) => None,
            None => view.store().map(|store| {
                let engine = RateLimitEngine::for_store(&store);
                (store, engine)
            }),
        };
        let Some((store, engine)) = find_store_and_engine(self, &found) else {
            return InitialVerdict::Answer(missing_store_reply());
        };
        let mut quotas = Vec::new();
        for question in &mut ask.checks {
            let asked = self.policies[question.policy_index].resolve_cost_and_quota(question, view);
            quotas.extend(asked.map(|asked| (question.policy_index, asked)));
        }
        let (at, outer) = (StoreIdentity::of(store), RateStatus::from_outer_layer(view));
        if let Some(outer) = &outer
            && self.remove_already_charged(&mut ask, at, outer, &quotas)
        {
            return InitialVerdict::Skip;
        }
        // A leased unit or a cached refusal decides without a wait.
        if asks && quotas.is_empty() {
            if !self.may_settle()
                && let Some(decision) = engine.admit_from_lease(store, &ask)
            {
                let status = RateStatus::new(decision, (ask, at), None, outer);
                status.insert_into(view);
                return InitialVerdict::PassLight(Some(status));
            }
            if let Some(decision) = engine.cached_refusal(&ask) {
                return self.refusal(&policy_statuses(&decision));
            }
        }
        let remembered = RefusalTracker::from_view(view);
        InitialVerdict::Enter(RateLimitContext {
            request_store: found,
            store_identity: at,
            request: ask,
            pending_quotas: quotas,
            outer_status: outer,
            replay: run,
            remembered_run: remembered,
        })
    }

    fn refusal<F, T>(&self, standings: &[PolicyStatus<'_>]) -> InitialVerdict<F, T> {
        match standings {
            // The reply depends on nothing but this status.
            [one] if self.policies.len() == 1 && !self.response.has_responder() => {
                InitialVerdict::SharedAnswer(
                    self.reply_cache.get_or_build(one, || self.response.refusal_reply(standings)),
                )
            }
            _ => InitialVerdict::Answer(self.response.refusal_reply(standings)),
        }
    }

    /// Reads the keys of the policies that have one, and the key of the group.
    fn build_check_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<CheckRequest, KeyError> {
        let mut questions = SmallVec::with_capacity(self.policies.len());
        let mut none = None;
        for (place, limit) in self.policies.iter().enumerate() {
            match limit.key_source.read(view) {
                Ok(key) => {
                    let cost = limit.policy.default_cost();
                    questions.push(PolicyCheck {
                        policy_index: place,
                        ..PolicyCheck::new(&limit.policy, key, cost)
                    });
                }
                Err(fault) if fault.allows_passage() => none = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        match none {
            Some(fault) if questions.is_empty() => Err(fault),
            _ => {
                let group = self.group_source.as_ref().map(|group| group.read(view)).transpose()?;
                Ok(CheckRequest { checks: questions, group })
            }
        }
    }
}

impl<R: RequestKind> RateLimitSettings<R> {
    /// Removes the checks that an outer layer has charged already. Returns true if none is left.
    fn remove_already_charged(
        &self,
        ask: &mut CheckRequest,
        at: StoreIdentity,
        outer: &RateStatus,
        quotas: &[(usize, BoxFuture<'static, Quota>)],
    ) -> bool {
        let differs = |place: usize| {
            // A pending quota may differ from the charged one, and no other layer adjusts the
            // charges of this one.
            quotas.iter().any(|(asked, _)| *asked == place)
                || self.policies.get(place).is_some_and(LayerPolicy::may_settle)
        };
        let (group, mut questions) = (ask.group.take(), std::mem::take(&mut ask.checks));
        questions.retain(|question| match outer.prior_charge(at, group.as_ref(), question) {
            PriorCharge::NotCharged => true,
            charged => {
                warn_duplicate_policy(question.policy.name());
                charged == PriorCharge::Different || differs(question.policy_index)
            }
        });
        *ask = CheckRequest { checks: questions, group };
        ask.checks.is_empty()
    }
}

impl<R: RequestKind> LayerPolicy<R> {
    /// Sets the cost and quota that depend on the request. Returns the lookup if the quota is not
    /// cached.
    fn resolve_cost_and_quota<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        question: &mut PolicyCheck,
        view: &mut V,
    ) -> Option<BoxFuture<'static, Quota>> {
        if let Some(cost) = &self.cost_by {
            question.cost = cost(view.native_request());
        }
        question.may_end_early = self.may_settle() || self.quota_by.is_some();
        match self.quota_by.as_ref()?.get_or_fetch(
            &self.policy,
            &question.key,
            view.native_request(),
        ) {
            QuotaLookupResult::Cached(quota) => {
                question.quota = quota;
                None
            }
            QuotaLookupResult::Pending(asked) => Some(asked),
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

/// Returns the layer's own store, or else the one found in the request.
fn find_store_and_engine<'a, R: RequestKind>(
    plan: &'a RateLimitSettings<R>,
    found: &'a Option<(Store, Arc<RateLimitEngine>)>,
) -> Option<StoreAndEngine<'a>> {
    plan.configured_store().or_else(|| found.as_ref().map(|(store, engine)| (store, engine)))
}

pub(super) fn missing_store_reply() -> Reply {
    crate::outage::missing_store_reply(LAYER_NAME)
}

impl RateLimitContext {
    /// Returns the store and engine; `read_request` has checked that there is one.
    pub(super) fn store_and_engine<'a, R: RequestKind>(
        &'a self,
        plan: &'a RateLimitSettings<R>,
    ) -> Option<StoreAndEngine<'a>> {
        find_store_and_engine(plan, &self.request_store)
    }

    /// Awaits the pending quotas.
    pub(super) async fn resolve_quotas(&mut self) {
        for (place, quota) in self.pending_quotas.drain(..) {
            let (quota, all) = (quota.await, self.request.checks.iter_mut());
            all.filter(|each| each.policy_index == place).for_each(|each| each.quota = quota);
        }
    }
}

impl fmt::Debug for RateLimitContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitContext").field("request", &self.request).finish_non_exhaustive()
    }
}
