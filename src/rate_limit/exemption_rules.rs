//! `ExemptionRules`: requests that are not counted, because of an access list or as a preflight.

use super::access_lists::{AccessListMatch, AccessLists};
use crate::{
    gate::{GateRequest, InitialVerdict, KeyError, KeySource, RequestKind},
    key::Key,
    reply::Reply,
};

/// Name of the layer in log records.
pub(super) const LAYER_NAME: &str = "RateLimitLayer";

/// Settings of a layer about requests that it does not count.
#[derive(Debug, Clone, Default)]
pub(super) struct ExemptionRules {
    pub(super) lists: AccessLists,
    pub(super) charges_preflights: bool,
}

/// Verdict about a request that is not counted.
#[derive(Debug)]
pub(super) enum UncountedVerdict {
    Pass,
    Refuse(Reply),
    /// The client is on a deny list.
    Deny(Reply),
}

impl UncountedVerdict {
    pub(super) fn from_key_error(key_error: KeyError) -> Self {
        key_error.into_reply(LAYER_NAME).map_or(Self::Pass, Self::Refuse)
    }

    pub(super) fn into_initial_verdict<F, T>(self) -> InitialVerdict<F, T> {
        match self {
            Self::Pass => InitialVerdict::Skip,
            Self::Refuse(reply) | Self::Deny(reply) => InitialVerdict::Answer(reply),
        }
    }
}

impl ExemptionRules {
    /// Decides before the keys are read, which a preflight does not have. Returns `None` if the
    /// request is to be charged. `sources` are the sources of the keys.
    pub(super) fn check_before_keys<'a, R: RequestKind, V>(
        &self,
        view: &mut V,
        mut sources: impl Iterator<Item = &'a KeySource<R>> + Clone,
        denied_reply: impl FnOnce() -> Reply,
    ) -> Option<UncountedVerdict>
    where
        V: GateRequest<NativeRequest = R::Native>,
    {
        match self.lists.match_address(view, sources.clone().find_map(KeySource::client_address)) {
            Err(key_error) => return Some(UncountedVerdict::from_key_error(key_error)),
            Ok(AccessListMatch::Denied) => return Some(UncountedVerdict::Deny(denied_reply())),
            Ok(AccessListMatch::Allowed) => {
                // The deny list wins. A request without a key is on no list of keys.
                let is_denied = |source: &KeySource<R>| {
                    source
                        .read(view)
                        .is_ok_and(|key| self.lists.match_key(&key) == AccessListMatch::Denied)
                };
                return Some(if self.lists.has_denied_keys() && sources.any(is_denied) {
                    UncountedVerdict::Deny(denied_reply())
                } else {
                    UncountedVerdict::Pass
                });
            }
            Ok(AccessListMatch::Unlisted) => {}
        }
        (!self.charges_preflights && is_preflight(view)).then_some(UncountedVerdict::Pass)
    }

    /// Decides by the keys of all policies, before the store is asked.
    pub(super) fn check_keys<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a Key>,
        denied_reply: impl FnOnce() -> Reply,
    ) -> Option<UncountedVerdict> {
        let mut is_allowed = false;
        for key in keys {
            match self.lists.match_key(key) {
                AccessListMatch::Denied => return Some(UncountedVerdict::Deny(denied_reply())),
                AccessListMatch::Allowed => is_allowed = true,
                AccessListMatch::Unlisted => {}
            }
        }
        is_allowed.then_some(UncountedVerdict::Pass)
    }
}

/// Returns true for a CORS preflight (Fetch standard, CORS-preflight fetch).
fn is_preflight<V: GateRequest>(view: &V) -> bool {
    let has = |name| !view.header_values(name).is_empty();
    view.method() == "OPTIONS" && has("origin") && has("access-control-request-method")
}
