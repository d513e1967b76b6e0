//! `RateLimitContext`: the data of a request with which the gate is entered.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;

use super::{
    rate_limit_settings::{RateLimitSettings, StoreAndEngine},
    rate_status::{RateStatus, StoreIdentity},
};
use crate::{
    gate::{DirectRunRefusals, ReplayMarker, RequestKind},
    rate_limit::{
        engine::{CheckRequest, RateLimitEngine},
        exemption_rules::LAYER_NAME,
        quota::Quota,
    },
    reply::Reply,
    store::Store,
};

/// Data of a request that the gate needs.
pub struct RateLimitContext {
    /// Store of the request, if the layer has none of its own.
    pub(super) request_store: Option<(Store, Arc<RateLimitEngine>)>,
    /// Identity of that store, or of the layer's own.
    pub(super) store_identity: StoreIdentity,
    pub(super) request: CheckRequest,
    /// Policies with a quota to be looked up, by index, and the lookups.
    pub(super) pending_quotas: Vec<(usize, BoxFuture<'static, Quota>)>,
    pub(super) outer_status: Option<RateStatus>,
    /// Run of a deferred request that was not charged yet.
    pub(super) replay: Option<ReplayMarker>,
    /// Direct run that the request belongs to.
    pub(super) direct_run: Option<DirectRunRefusals>,
}

/// Returns the layer's own store, or else the one found in the request.
pub(super) fn find_store_and_engine<'a, R: RequestKind>(
    settings: &'a RateLimitSettings<R>,
    request_store: &'a Option<(Store, Arc<RateLimitEngine>)>,
) -> Option<StoreAndEngine<'a>> {
    settings
        .configured_store()
        .or_else(|| request_store.as_ref().map(|(store, engine)| (store, engine)))
}

pub(super) fn missing_store_reply() -> Reply {
    crate::outage::missing_store_reply(LAYER_NAME)
}

impl RateLimitContext {
    /// Returns the store and engine; `read_request` has checked that there is one.
    pub(super) fn store_and_engine<'a, R: RequestKind>(
        &'a self,
        settings: &'a RateLimitSettings<R>,
    ) -> Option<StoreAndEngine<'a>> {
        find_store_and_engine(settings, &self.request_store)
    }

    /// Awaits the pending quotas.
    pub(super) async fn resolve_quotas(&mut self) {
        for (policy_index, quota) in self.pending_quotas.drain(..) {
            let (quota, checks) = (quota.await, self.request.checks.iter_mut());
            let of_policy = checks.filter(|check| check.policy_index == policy_index);
            of_policy.for_each(|check| check.quota = quota);
        }
    }
}

impl fmt::Debug for RateLimitContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitContext").field("request", &self.request).finish_non_exhaustive()
    }
}
