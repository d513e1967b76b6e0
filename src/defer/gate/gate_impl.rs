//! `Gate` implementation of `DeferLayer`.

use std::{convert::Infallible, fmt};

use bytes::Bytes;

use super::{
    credential_warning::warn_credential_once,
    defer_layer::{DeferLayer, StorageSettings},
    direct_response::{DirectResponse, DirectRunContext, classify_direct_run},
    inspect_request::AppliedPreferences,
};
use crate::{
    defer::{
        snapshot::{RequestSnapshots, SavedSnapshots},
        stored_headers::{requires_upgrade, stored_head_len},
    },
    gate::{
        AttemptMode, BodyBudget, DetachedRun, Gate, GateRequest, HttpRequestHead, InitialVerdict,
        LeaveAction, ParkedVerdict, ParkingContext, ParkingSlot, RequestFingerprint, RequestKind,
        ServiceOutcome, Verdict,
    },
    reply::Reply,
};

/// Ticket of a request between entry and exit. It is moved with the future of every request, so
/// rarely used data are behind a pointer.
#[derive(Debug)]
pub struct DeferTicket {
    pub(super) slot: ParkingSlot,
    pub(super) details: Option<Box<DeferTicketDetails>>,
}

/// Ticket data of requests that need them; most do not.
#[derive(Default)]
pub(super) struct DeferTicketDetails {
    owner: String,
    applied_preferences: AppliedPreferences,
    snapshots: RequestSnapshots,
    /// Response of a direct run that is recorded.
    pub(super) direct_response: DirectResponse,
}

/// The owner is left out, since debug output may be logged.
impl fmt::Debug for DeferTicketDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferTicketDetails").finish_non_exhaustive()
    }
}

impl DeferTicket {
    pub(super) fn without_details(slot: ParkingSlot) -> Self {
        Self { slot, details: None }
    }

    pub(super) fn new(
        slot: ParkingSlot,
        owner: String,
        applied: AppliedPreferences,
        captured: RequestSnapshots,
    ) -> Self {
        let more = DeferTicketDetails {
            owner,
            applied_preferences: applied,
            snapshots: captured,
            ..DeferTicketDetails::default()
        };
        Self { slot, details: Some(Box::new(more)) }
    }
}

/// Parked request that may be deferred.
pub struct DeferCandidate {
    pub(super) parked: ParkingContext,
    pub(super) slot: ParkingSlot,
    pub(super) owner: String,
    pub(super) applied_preferences: AppliedPreferences,
    pub(super) snapshots: RequestSnapshots,
    /// Serialized when the parked request is inspected.
    pub(super) saved_snapshots: SavedSnapshots,
    /// The request may not be stored. Its body is read for the fingerprint only.
    pub(super) lookup_only: bool,
}

/// Owner and snapshots are left out, since debug output may be logged.
impl fmt::Debug for DeferCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parked, lookup_only: only_looks, .. } = self;
        f.debug_struct("DeferCandidate")
            .field("parked", parked)
            .field("only_looks", only_looks)
            .finish_non_exhaustive()
    }
}

impl<R: RequestKind> Gate<R::Native> for DeferLayer<R> {
    type EntryContext = Infallible;
    type Ticket = DeferTicket;
    type LightTicket = DeferTicket;
    type AcceptTicket = DeferCandidate;

    const ACCEPTS_PARKED: bool = true;

    fn validate_settings(&self) {
        self.0.validate();
    }

    fn inspect<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<Infallible, DeferTicket> {
        self.inspect_request(view)
    }

    async fn enter(&self, facts: Infallible) -> Verdict<DeferTicket> {
        match facts {}
    }

    /// Nothing to add: the inner lock takes the slot from the request, and handlers do not see it.
    fn annotate_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        _: &DeferTicket,
        _: &mut V,
    ) {
    }

    fn full_ticket(&self, quick: DeferTicket) -> DeferTicket {
        quick
    }

    fn is_settled(&self, ticket: &DeferTicket) -> bool {
        !self.0.trigger.defer_always && ticket.slot.is_empty()
    }

    fn observe_headers(
        &self,
        ticket: &mut DeferTicket,
        fields: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        if ticket.slot.has_run() {
            ticket.details.get_or_insert_default().direct_response.record_headers(fields());
        }
    }

    fn detach(&self, ticket: &mut DeferTicket) -> Option<DetachedRun> {
        if !ticket.slot.records_direct_runs() {
            return None;
        }
        let limit = self.0.idempotency.direct_response_limit;
        ticket.details.get_or_insert_default().direct_response.buffer_body(limit);
        Some(DetachedRun::new(ticket.slot.clone()))
    }

    fn observe_body_chunk(&self, ticket: &mut DeferTicket, chunk: &[u8]) {
        if let Some(more) = &mut ticket.details {
            more.direct_response.record_body_chunk(chunk);
        }
    }

    async fn leave(
        &self,
        mut ticket: DeferTicket,
        outcome: ServiceOutcome,
    ) -> LeaveAction<DeferTicket, DeferCandidate> {
        if self.completes_with_body(&mut ticket, outcome) {
            return LeaveAction::KeepTicket(ticket);
        }
        let DeferTicket { slot, details: more } = ticket;
        let facts = DirectRunContext::from_slot(&slot);
        if let Some((begun, print)) = slot.take_run() {
            let answer = more.map(|more| more.direct_response).unwrap_or_default();
            let verdict = classify_direct_run(Some(&answer), outcome, facts);
            self.complete_record(begun, print, (answer, outcome), verdict).await;
            // A retry layer in between may have met a busy lock after the recorded run.
            return LeaveAction::AddHeaders(Vec::new());
        }
        let DeferTicketDetails { owner, applied_preferences: applied, snapshots: captured, .. } =
            more.map(|more| *more).unwrap_or_default();
        match slot.take_parking() {
            // Only if the busy response itself arrives here: a retry or cache layer may have
            // replaced it.
            Some(parked) if outcome.status() == Some(parked.busy_status) => {
                let what = &self.0.storage;
                let room =
                    BodyBudget::new(what.body_limit, what.buffer_budget, what.body_read_timeout);
                let place = slot.clone();
                let parked = DeferCandidate {
                    parked,
                    slot,
                    owner,
                    applied_preferences: applied,
                    snapshots: captured,
                    saved_snapshots: SavedSnapshots::new(),
                    lookup_only: false,
                };
                LeaveAction::Accept { accept_ticket: parked, body_budget: room, slot: place }
            }
            _ if slot.mode() == AttemptMode::ParkOrRefuse && !slot.has_reached_lock() => {
                missing_lock_reply(outcome)
            }
            _ => LeaveAction::AddHeaders(Vec::new()),
        }
    }

    fn inspect_parked<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        parked: &mut DeferCandidate,
        head: &HttpRequestHead,
        view: &mut V,
        room: &mut BodyBudget,
    ) -> ParkedVerdict {
        // The recorded request is compared with this one.
        let known = parked.parked.is_recorded;
        let unread = if known { ParkedVerdict::HeadOnly } else { ParkedVerdict::Decline };
        let is_upgrade = requires_upgrade(view.method(), &view.header_values("upgrade"));
        if is_upgrade {
            return unread;
        }
        if !room.try_reserve_head(head, self.0.storage.client.budget_key(view)) {
            let lock = parked.parked.key.log_hash();
            tracing::debug!(%lock, "not deferred: the buffer budget is exhausted");
            return unread;
        }
        if parked.parked.is_not_deferrable {
            parked.lookup_only = true;
            return ParkedVerdict::ReadBody;
        }
        if let Some(carried) = self.storable_snapshots(parked, head) {
            parked.saved_snapshots = carried;
            return ParkedVerdict::ReadBody;
        }
        parked.lookup_only = known;
        if known { ParkedVerdict::ReadBody } else { ParkedVerdict::Decline }
    }

    async fn accept_parked(
        &self,
        parked: DeferCandidate,
        head: HttpRequestHead,
        body: Option<Bytes>,
    ) -> Option<Reply> {
        match body {
            Some(body) if parked.lookup_only => {
                let print = RequestFingerprint::compute(&head.method, &head.target, &body);
                self.look_up_record(parked, Some(print)).await
            }
            Some(body) => self.store_request(parked, head, &body).await,
            // A request that can't be stored may have been accepted or run before.
            None if parked.parked.is_recorded => self.look_up_record(parked, None).await,
            None => None,
        }
    }
}

impl<R: RequestKind> DeferLayer<R> {
    /// Returns the snapshots of the request; `None` if it may not be stored.
    fn storable_snapshots(
        &self,
        parked: &mut DeferCandidate,
        head: &HttpRequestHead,
    ) -> Option<SavedSnapshots> {
        let lock = parked.parked.key.log_hash();
        let StorageSettings { header_filter: fields, head_limit, .. } = &self.0.storage;
        let Some(carried) = std::mem::take(&mut parked.snapshots).save_all() else {
            crate::throttle::throttled!(
                error,
                %lock, "not deferred: a snapshot could not be serialized"
            );
            return None;
        };
        // The owner is often a header, and is stored in addition to it.
        let bytes = stored_head_len(&head.target, &head.headers, fields) + parked.owner.len();
        if bytes > *head_limit {
            tracing::debug!(%lock, bytes, head_limit, "not deferred: the request head is too long");
            return None;
        }
        let mut names = head.headers.iter().map(|(name, _)| name);
        let withheld = names.find_map(|name| fields.withheld_credential(name));
        match withheld.filter(|_| carried.is_empty()) {
            None => Some(carried),
            Some(credential) => {
                warn_credential_once(&lock, credential);
                None
            }
        }
    }
}

/// Returns the reply if a layer with `defer_always` has met no lock. An error of a layer in between
/// (401, 404, 429) stands, since it reached no handler.
fn missing_lock_reply<T, P>(outcome: ServiceOutcome) -> LeaveAction<T, P> {
    if outcome.status().is_none_or(|status| status >= 400) {
        return LeaveAction::AddHeaders(Vec::new());
    }
    crate::throttle::throttled!(
        error,
        layer = "DeferLayer",
        "request answered with 500: the layer is set to `defer_always`, but no LockLayer inside it \
         locked the request, so it ran at once; add a LockLayer inside the DeferLayer"
    );
    LeaveAction::Replace(Reply::misconfigured())
}
