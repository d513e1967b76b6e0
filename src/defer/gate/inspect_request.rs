//! Inspection of a request before it passes: whether it may be deferred, its idempotency record,
//! and how its lock is tried.

use std::convert::Infallible;

use super::{
    applied_preferences::AppliedPreferences,
    defer_layer::{DeferLayer, DeferSettings, StorageSettings},
    gate_impl::DeferTicket,
    requires_upgrade::requires_upgrade,
};
use crate::{
    defer::{extension_snapshot::RequestSnapshots, idempotency_key::parse_idempotency_key},
    gate::{
        DirectRunTerms, GateRequest, IdempotencyLookup, InitialVerdict, LockInstruction,
        ParkingSlot, REPLAY_HEADER, RequestKind, RouteMatch, UnderLockMark, is_replay,
    },
    key::{digest_parts, hex},
    reply::{Reply, problem},
};

impl<R: RequestKind> DeferLayer<R> {
    pub(super) fn inspect_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<Infallible, DeferTicket> {
        let settings = &*self.0;
        // A deferred replay would be an endless job.
        if is_replay(view) {
            return InitialVerdict::Skip;
        }
        if !settings.methods.matches(view.method()) {
            self.warn_undeferred_get(view);
            return InitialVerdict::Skip;
        }
        if UnderLockMark::is_set_on(view) {
            return InitialVerdict::Answer(inside_lock_reply());
        }
        let route = self.route_to_report(view);
        if let Some(reply) = self.refuse_unlocked(route.as_deref()) {
            return InitialVerdict::Answer(reply);
        }
        match self.inspect_deferrable_request(view) {
            InitialVerdict::PassLight(ticket) => {
                InitialVerdict::PassLight(ticket.with_route(route))
            }
            verdict => verdict,
        }
    }

    /// Inspects a request that may be deferred, as far as its method tells.
    fn inspect_deferrable_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<Infallible, DeferTicket> {
        let settings = &*self.0;
        let has_special_header = view.has_any_header(&["idempotency-key", "prefer", REPLAY_HEADER]);
        let is_plain = !settings.trigger.background && !has_special_header;
        if is_plain && settings.owner.is_none() && settings.snapshot_extractors.is_empty() {
            let slot = ParkingSlot::new(LockInstruction::WaitFor(settings.trigger.lock_wait), None);
            slot.attach_to(view);
            return InitialVerdict::PassLight(DeferTicket::without_details(slot));
        }
        let mut snapshots = settings.snapshot_extractors.extract(view.native_request());
        let owner = settings.resolve_owner(view.native_request(), &mut snapshots);
        if is_plain {
            let slot = ParkingSlot::new(LockInstruction::WaitFor(settings.trigger.lock_wait), None)
                .with_store_observer(settings.store_observer());
            slot.attach_to(view);
            let ticket = DeferTicket::new(slot, owner, AppliedPreferences::default(), snapshots);
            return InitialVerdict::PassLight(ticket);
        }
        // Neither is a run for a worker in another process deferred. The header is only a claim;
        // the inner lock verifies it.
        let claims_replay = has_special_header && !view.header_values(REPLAY_HEADER).is_empty();
        self.inspect_special_request(view, owner, snapshots, claims_replay)
    }

    /// Inspects a request with an `Idempotency-Key`, a preference or a replay claim, or of a layer
    /// that always defers.
    fn inspect_special_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
        owner: String,
        snapshots: RequestSnapshots,
        claims_replay: bool,
    ) -> InitialVerdict<Infallible, DeferTicket> {
        let settings = &*self.0;
        let Ok(key) = parse_idempotency_key(&view.header_values("idempotency-key")) else {
            let title = "Idempotency-Key must be one string of 1 to 255 characters of ASCII";
            return InitialVerdict::Answer(Reply::problem(
                400,
                problem::BAD_IDEMPOTENCY_KEY,
                title,
            ));
        };
        let route = match key.as_ref().map(|_| view.route()) {
            None | Some(RouteMatch::Unknown) => String::new(),
            Some(RouteMatch::Unmatched) => return InitialVerdict::Skip,
            Some(RouteMatch::Matched(route)) => route,
        };
        let has_user = || {
            !snapshots.is_empty() || {
                let names = view.header_names();
                let header_filter = &settings.storage.header_filter;
                names.iter().any(|name| header_filter.is_credential(name))
            }
        };
        let is_unnamed = key.is_some() && settings.lacks_owner(&owner, has_user);
        if is_unnamed && !claims_replay {
            return InitialVerdict::Answer(missing_owner_reply());
        }
        // The key of a claimed run may come from its worker, and has no record.
        let key = key.filter(|_| !is_unnamed);
        let record =
            key.map(|key| settings.idempotency_record(&owner, view.method(), &route, &key));
        let may_be_stored = || settings.is_storable(view, &owner, !snapshots.is_empty());
        let (mode, applied_preferences) =
            settings.trigger.attempt_mode(&view.header_values("prefer"), may_be_stored);
        let slot = ParkingSlot::with_replay_claim(mode, record, claims_replay)
            .with_store_observer(settings.store_observer());
        slot.attach_to(view);
        InitialVerdict::PassLight(DeferTicket::new(slot, owner, applied_preferences, snapshots))
    }
}

fn inside_lock_reply() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "DeferLayer",
        "request refused: the DeferLayer is inside a LockLayer; put it outside (axum: .layer() \
         after the LockLayer, actix-web: .wrap() after it)"
    );
    Reply::misconfigured()
}

/// Returns the reply to a request with a key that other users could share.
fn missing_owner_reply() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "DeferLayer",
        "request refused: it has an Idempotency-Key and a snapshot but no owner, so users would \
         share their keys; carry the user by .for_user::<U>() or .carry_identity::<T>(..), with \
         the authentication outside this layer, or name the .owner(..), or set \
         .share_across_owners()"
    );
    Reply::misconfigured()
}

impl<N: ?Sized> DeferSettings<N> {
    /// Returns the lookup of a client's key. The record's name in the store also contains the
    /// lock's name.
    fn idempotency_record(
        &self,
        owner: &str,
        method: &str,
        route: &str,
        key: &str,
    ) -> IdempotencyLookup {
        let parts = [owner, method, route, key].map(str::as_bytes);
        let record_name = hex(&digest_parts(&parts)[..16]).into();
        let direct_terms = || DirectRunTerms {
            owner: owner.to_owned(),
            compared_body_limit: self.storage.body_limit,
            retention: self.idempotency.ttl,
            is_repeatable: self.run.allows_rerun(method) && self.run.max_attempts > 1,
            max_runs: self.idempotency.max_direct_runs,
            retention_caps: self.storage_limits,
        };
        IdempotencyLookup {
            record_name,
            direct_terms: self.idempotency.idempotent_direct.then(direct_terms),
        }
    }

    /// Returns true if the request's head does not prevent storage, by the limits that the later
    /// inspection applies.
    fn is_storable<V: GateRequest<NativeRequest = N>>(
        &self,
        view: &V,
        owner: &str,
        has_snapshot: bool,
    ) -> bool {
        let length = view.header_values("content-length").first().copied().unwrap_or(b"0");
        let length = std::str::from_utf8(length).ok().and_then(|length| length.parse().ok());
        let StorageSettings { body_limit, head_limit, header_filter, .. } = &self.storage;
        let names = view.header_names();
        let pair_len = |name: &str, value: &[u8]| name.len() + value.len();
        let header_len = |name: &&str| {
            view.header_values(name).into_iter().map(|value| pair_len(name, value)).sum::<usize>()
        };
        let stored_len: usize =
            names.iter().filter(|name| header_filter.allows(name)).map(header_len).sum();
        // The stored head has a host header even if only the URI names the host.
        let authority = view.authority().filter(|_| !names.contains(&"host"));
        let host_len = authority.map_or(0, |authority| pair_len("host", authority.as_bytes()));
        let head_len = stored_len + host_len + view.target_len() + owner.len();
        !requires_upgrade(view.method(), &view.header_values("upgrade"))
            && length.is_some_and(|length: usize| length <= *body_limit)
            && head_len <= *head_limit
            && (has_snapshot || !self.has_withheld_credential(view))
    }

    /// Returns true if the request has a credential that is not stored.
    fn has_withheld_credential<V: GateRequest<NativeRequest = N>>(&self, view: &V) -> bool {
        let is_withheld =
            |name: &&str| self.storage.header_filter.withheld_credential(name).is_some();
        view.header_names().iter().any(is_withheld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_one_attempt_nothing_runs_again() {
        let is_repeatable = |gate: DeferLayer<()>, method| {
            let record = gate.idempotent_direct().0.idempotency_record("", method, "/", "k");
            record.direct_terms.map(|terms| terms.is_repeatable)
        };
        let gate = DeferLayer::<()>::new;
        assert_eq!(is_repeatable(gate(), "PUT"), Some(true));
        assert_eq!(is_repeatable(gate(), "POST"), Some(false));
        assert_eq!(is_repeatable(gate().retry_non_idempotent(), "POST"), Some(true));
        assert_eq!(is_repeatable(gate().max_attempts(1), "PUT"), Some(false));
        assert_eq!(
            is_repeatable(gate().retry_non_idempotent().max_attempts(1), "POST"),
            Some(false)
        );
    }
}
