//! What a `RateLimitLayer` shows the outside: whom it asks nothing of, and what it tells.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    fields::RateFields,
    lists::{Listed, Lists},
    respond::{Reason, Refusal},
    standing::Standing,
};
use crate::{
    gate::{Asked, KeySource, View},
    key::Key,
    reply::{Fields, Reply},
};

type Respond = dyn Fn(&Refusal<'_>) -> Reply + Send + Sync;

/// The settings of a layer that have nothing to do with how it counts.
#[derive(Clone, Default)]
pub struct Facing {
    lists: Lists,
    kind: RateFields,
    exposed: bool,
    charges_preflights: bool,
    respond: Option<Arc<Respond>>,
}

impl Facing {
    /// See `RateLimitLayer::lists`.
    #[must_use]
    pub fn lists(mut self, lists: Lists) -> Self {
        self.lists = lists;
        self
    }

    /// See `RateLimitLayer::fields`.
    #[must_use]
    pub fn fields(mut self, fields: RateFields) -> Self {
        self.kind = fields;
        self
    }

    /// See `RateLimitLayer::expose_fields`.
    #[must_use]
    pub fn expose_fields(mut self) -> Self {
        self.exposed = true;
        self
    }

    /// See `RateLimitLayer::charge_preflights`.
    #[must_use]
    pub fn charge_preflights(mut self) -> Self {
        self.charges_preflights = true;
        self
    }

    /// See `RateLimitLayer::respond`.
    #[must_use]
    pub fn respond(
        mut self,
        respond: impl Fn(&Refusal<'_>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        self.respond = Some(Arc::new(respond));
        self
    }

    /// See `RateLimitLayer::grpc`.
    #[must_use]
    pub fn grpc(self) -> Self {
        // A function, since a path to the method is of one lifetime only.
        fn grpc(refusal: &Refusal<'_>) -> Reply {
            refusal.grpc()
        }
        self.respond(grpc)
    }

    /// Asked before the request's keys are read, which a preflight has none of; `None` if it is to be charged.
    /// `sources`: of the keys.
    pub(super) fn ask<'a, V: View<Native: 'a>, F, T>(
        &self,
        view: &mut V,
        mut sources: impl Iterator<Item = &'a KeySource<V::Native>> + Clone,
    ) -> Option<Asked<F, T>> {
        match self.lists.by_address(view, sources.clone().find_map(KeySource::address)) {
            Err(fault) => {
                return Some(fault.answer("RateLimitLayer").map_or(Asked::Skip, Asked::Answer));
            }
            Ok(Listed::Denied) => return Some(Asked::Answer(self.deny())),
            Ok(Listed::Allowed) => {
                // On both lists is denied; but who has no key at all is on none.
                let is_denied = |source: &KeySource<V::Native>| {
                    source.read(view).is_ok_and(|key| self.lists.by_key(&key) == Listed::Denied)
                };
                let denied = self.lists.denies_keys() && sources.any(is_denied);
                return Some(if denied { Asked::Answer(self.deny()) } else { Asked::Skip });
            }
            Ok(Listed::Nowhere) => {}
        }
        (!self.charges_preflights && is_preflight(view)).then_some(Asked::Skip)
    }

    /// Asked with the keys of all policies, before the store is.
    pub(super) fn ask_keys<'a, F, T>(
        &self,
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> Option<Asked<F, T>> {
        let mut skip = None;
        for key in keys {
            match self.lists.by_key(key) {
                Listed::Denied => return Some(Asked::Answer(self.deny())),
                Listed::Allowed => skip = Some(Asked::Skip),
                Listed::Nowhere => {}
            }
        }
        skip
    }

    /// What a request that was let in is told.
    pub(super) fn told(&self, standings: &[Standing<'_>]) -> Fields {
        let mut fields = Fields::new();
        self.kind.write(self.exposed, standings, &mut fields);
        fields
    }

    /// The same; `policies` as in [`RateFields::tell`].
    pub(super) fn tell(
        &self,
        standings: &[Standing<'_>],
        policies: impl FnOnce(&[Standing<'_>]) -> Bytes,
        add: impl FnMut(&'static str, Bytes),
    ) {
        self.kind.tell(self.exposed, standings, policies, add);
    }

    /// The answer to a request that one at least of these policies refuses.
    pub(super) fn refuse(&self, standings: &[Standing<'_>]) -> Reply {
        let hopeless = standings.iter().any(Standing::is_hopeless);
        self.reply(if hopeless { Reason::TooCostly } else { Reason::Spent }, standings)
    }

    /// Whether the application makes the answers.
    pub(super) fn responds(&self) -> bool {
        self.respond.is_some()
    }

    fn deny(&self) -> Reply {
        tracing::debug!("request refused: its client is on the deny list");
        self.reply(Reason::Denied, &[])
    }

    fn reply(&self, reason: Reason, standings: &[Standing<'_>]) -> Reply {
        let refusal = Refusal { reason, standings, kind: self.kind, exposed: self.exposed };
        match &self.respond {
            Some(respond) => respond(&refusal),
            None => refusal.reply(),
        }
    }
}

/// What a browser asks in front of a request to another origin (Fetch standard, CORS-preflight fetch).
fn is_preflight<V: View>(view: &V) -> bool {
    let has = |name| !view.header(name).is_empty();
    view.method() == "OPTIONS" && has("origin") && has("access-control-request-method")
}

impl fmt::Debug for Facing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facing")
            .field("lists", &self.lists)
            .field("fields", &self.kind)
            .field("exposed", &self.exposed)
            .field("charges_preflights", &self.charges_preflights)
            .field("responds", &self.respond.is_some())
            .finish()
    }
}
