//! Settings of a `RateLimitLayer` about exemptions, headers and replies.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    access_lists::{AccessListMatch, AccessLists},
    policy_status::PolicyStatus,
    rate_headers::RateHeaders,
    rate_refusal::{RateRefusal, RefusalReason},
};
use crate::{
    gate::{GateRequest, InitialVerdict, KeySource, RequestKind},
    key::Key,
    reply::{HeaderSet, Reply},
};

pub(super) type RefusalResponder = dyn Fn(&RateRefusal<'_>) -> Reply + Send + Sync;

/// Settings of a layer that do not affect its counting.
#[derive(Clone, Default)]
pub(super) struct ResponseOptions {
    pub(super) lists: AccessLists,
    pub(super) headers: RateHeaders,
    pub(super) expose_headers: bool,
    pub(super) charges_preflights: bool,
    pub(super) responder: Option<Arc<RefusalResponder>>,
}

impl ResponseOptions {
    /// Decides before the keys are read, which a preflight does not have. Returns `None` if the
    /// request is to be charged. `sources` are the sources of the keys.
    pub(super) fn check_before_keys<'a, R: RequestKind, V, F, T>(
        &self,
        view: &mut V,
        mut sources: impl Iterator<Item = &'a KeySource<R>> + Clone,
    ) -> Option<InitialVerdict<F, T>>
    where
        V: GateRequest<NativeRequest = R::Native>,
    {
        match self.lists.match_address(view, sources.clone().find_map(KeySource::client_address)) {
            Err(fault) => {
                return Some(
                    fault
                        .into_reply("RateLimitLayer")
                        .map_or(InitialVerdict::Skip, InitialVerdict::Answer),
                );
            }
            Ok(AccessListMatch::Denied) => {
                return Some(InitialVerdict::Answer(self.denied_reply()));
            }
            Ok(AccessListMatch::Allowed) => {
                // The deny list wins. A request without a key is on no list of keys.
                let is_denied = |source: &KeySource<R>| {
                    source
                        .read(view)
                        .is_ok_and(|key| self.lists.match_key(&key) == AccessListMatch::Denied)
                };
                let denied = self.lists.has_denied_keys() && sources.any(is_denied);
                return Some(if denied {
                    InitialVerdict::Answer(self.denied_reply())
                } else {
                    InitialVerdict::Skip
                });
            }
            Ok(AccessListMatch::Unlisted) => {}
        }
        (!self.charges_preflights && is_preflight(view)).then_some(InitialVerdict::Skip)
    }

    /// Decides by the keys of all policies, before the store is asked.
    pub(super) fn check_keys<'a, F, T>(
        &self,
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> Option<InitialVerdict<F, T>> {
        let mut skip = None;
        for key in keys {
            match self.lists.match_key(key) {
                AccessListMatch::Denied => {
                    return Some(InitialVerdict::Answer(self.denied_reply()));
                }
                AccessListMatch::Allowed => skip = Some(InitialVerdict::Skip),
                AccessListMatch::Unlisted => {}
            }
        }
        skip
    }

    /// Returns the headers for an admitted request.
    pub(super) fn headers_for(&self, standings: &[PolicyStatus<'_>]) -> HeaderSet {
        let mut fields = HeaderSet::new();
        self.headers.append_to(self.expose_headers, standings, &mut fields);
        fields
    }

    /// Like `headers_for`; `policies` as in [`RateHeaders::for_each_header`].
    pub(super) fn for_each_header(
        &self,
        standings: &[PolicyStatus<'_>],
        policies: impl FnOnce(&[PolicyStatus<'_>]) -> Bytes,
        add: impl FnMut(&'static str, Bytes),
    ) {
        self.headers.for_each_header(self.expose_headers, standings, policies, add);
    }

    /// Returns the reply to a request that at least one of these policies refuses.
    pub(super) fn refusal_reply(&self, standings: &[PolicyStatus<'_>]) -> Reply {
        let hopeless = standings.iter().any(PolicyStatus::is_permanent);
        self.build_reply(
            if hopeless { RefusalReason::CostAboveQuota } else { RefusalReason::QuotaExceeded },
            standings,
        )
    }

    /// Returns true if the application makes the replies.
    pub(super) fn has_responder(&self) -> bool {
        self.responder.is_some()
    }

    fn denied_reply(&self) -> Reply {
        tracing::debug!("request refused: the client is on the deny list");
        self.build_reply(RefusalReason::Denied, &[])
    }

    fn build_reply(&self, reason: RefusalReason, standings: &[PolicyStatus<'_>]) -> Reply {
        let refusal = RateRefusal {
            reason,
            policies: standings,
            headers: self.headers,
            expose_headers: self.expose_headers,
        };
        match &self.responder {
            Some(respond) => respond(&refusal),
            None => refusal.reply(),
        }
    }
}

/// Returns true for a CORS preflight (Fetch standard, CORS-preflight fetch).
fn is_preflight<V: GateRequest>(view: &V) -> bool {
    let has = |name| !view.header_values(name).is_empty();
    view.method() == "OPTIONS" && has("origin") && has("access-control-request-method")
}

impl fmt::Debug for ResponseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseOptions")
            .field("lists", &self.lists)
            .field("headers", &self.headers)
            .field("expose_headers", &self.expose_headers)
            .field("charges_preflights", &self.charges_preflights)
            .field("responds", &self.responder.is_some())
            .finish()
    }
}
