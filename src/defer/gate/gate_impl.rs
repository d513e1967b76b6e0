//! `Gate` implementation of `DeferLayer`.

use std::{convert::Infallible, fmt};

use bytes::Bytes;

use super::{
    applied_preferences::AppliedPreferences,
    credential_warning::warn_credential_once,
    defer_layer::{DeferLayer, StorageSettings},
    direct_response::{DirectResponse, DirectRunContext, classify_direct_run},
    requires_upgrade::requires_upgrade,
};
use crate::{
    defer::{
        extension_snapshot::{RequestSnapshots, SavedSnapshots},
        run_label::RunLabel,
        stored_request_headers::stored_head_len,
    },
    gate::{
        BodyBudget, BusyLockContext, DetachedRun, Gate, GateRequest, HttpRequestHead,
        InitialVerdict, LeaveAction, ParkedVerdict, ParkingSlot, RequestFingerprint, RequestKind,
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
    /// Method and route, if the request may have to be reported.
    route: Option<String>,
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
        applied_preferences: AppliedPreferences,
        snapshots: RequestSnapshots,
    ) -> Self {
        let details = DeferTicketDetails {
            owner,
            applied_preferences,
            snapshots,
            ..DeferTicketDetails::default()
        };
        Self { slot, details: Some(Box::new(details)) }
    }

    /// Adds method and route, for a report that the request met no lock.
    pub(super) fn with_route(mut self, route: Option<String>) -> Self {
        if route.is_some() {
            self.details.get_or_insert_default().route = route;
        }
        self
    }
}

/// Parked request that may be deferred.
pub struct DeferCandidate {
    pub(super) parked: BusyLockContext,
    pub(super) slot: ParkingSlot,
    pub(super) owner: String,
    pub(super) applied_preferences: AppliedPreferences,
    pub(super) snapshots: RequestSnapshots,
    /// Serialized when the parked request is inspected.
    pub(super) saved_snapshots: SavedSnapshots,
    /// The request may not be stored. Its body is read for the fingerprint only.
    pub(super) lookup_only: bool,
    /// Method and route, for log records.
    pub(super) label: RunLabel,
}

/// Owner and snapshots are left out, since debug output may be logged.
impl fmt::Debug for DeferCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parked, lookup_only, .. } = self;
        f.debug_struct("DeferCandidate")
            .field("parked", parked)
            .field("lookup_only", lookup_only)
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

    async fn enter(&self, context: Infallible) -> Verdict<DeferTicket> {
        match context {}
    }

    /// Nothing to add: the inner lock takes the slot from the request, and handlers do not see it.
    fn annotate_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        _: &DeferTicket,
        _: &mut V,
    ) {
    }

    fn full_ticket(&self, light_ticket: DeferTicket) -> DeferTicket {
        light_ticket
    }

    fn is_settled(&self, ticket: &DeferTicket) -> bool {
        let has_met_lock = self.0.lock_presence.observe(&ticket.slot);
        has_met_lock && !self.0.trigger.background && ticket.slot.is_empty()
    }

    fn observe_headers(
        &self,
        ticket: &mut DeferTicket,
        headers: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        if ticket.slot.has_run() {
            ticket.details.get_or_insert_default().direct_response.record_headers(headers());
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
        if let Some(details) = &mut ticket.details {
            details.direct_response.record_body_chunk(chunk);
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
        let DeferTicket { slot, details } = ticket;
        let context = DirectRunContext::from_slot(&slot);
        if let Some((run, fingerprint)) = slot.take_run() {
            let response = details.map(|details| details.direct_response).unwrap_or_default();
            let result = classify_direct_run(Some(&response), outcome, context);
            self.complete_record(run, fingerprint, (response, outcome), result).await;
            // A retry layer in between may have met a busy lock after the recorded run.
            return LeaveAction::AddHeaders(Vec::new());
        }
        let DeferTicketDetails { owner, applied_preferences, snapshots, route, .. } =
            details.map(|details| *details).unwrap_or_default();
        match slot.take_parking() {
            // Only if the busy response itself arrives here: a retry or cache layer may have
            // replaced it.
            Some(parked) if outcome.status() == Some(parked.busy_status) => {
                let StorageSettings { body_limit, buffer_budget, body_read_timeout, .. } =
                    self.0.storage;
                let body_budget = BodyBudget::new(body_limit, buffer_budget, body_read_timeout);
                let candidate = DeferCandidate {
                    parked,
                    slot: slot.clone(),
                    owner,
                    applied_preferences,
                    snapshots,
                    saved_snapshots: SavedSnapshots::new(),
                    lookup_only: false,
                    label: RunLabel::default(),
                };
                LeaveAction::Accept { accept_ticket: candidate, body_budget, slot }
            }
            _ => self.settle_unparked(&slot, route.as_deref(), outcome),
        }
    }

    fn inspect_parked<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        candidate: &mut DeferCandidate,
        head: &HttpRequestHead,
        view: &mut V,
        body_budget: &mut BodyBudget,
    ) -> ParkedVerdict {
        candidate.label = RunLabel::of_view(view);
        // The recorded request is compared with this one.
        let is_recorded = candidate.parked.is_recorded;
        let unread = if is_recorded { ParkedVerdict::HeadOnly } else { ParkedVerdict::Decline };
        let is_upgrade = requires_upgrade(view.method(), &view.header_values("upgrade"));
        if is_upgrade {
            return unread;
        }
        if !body_budget.try_reserve_head(head, self.0.storage.client.budget_key(view)) {
            let lock = candidate.parked.log_name();
            tracing::debug!(%lock, "not deferred: the buffer budget is exhausted");
            return unread;
        }
        if candidate.parked.is_not_deferrable {
            candidate.lookup_only = true;
            return ParkedVerdict::ReadBody;
        }
        if let Some(snapshots) = self.storable_snapshots(candidate, head) {
            candidate.saved_snapshots = snapshots;
            return ParkedVerdict::ReadBody;
        }
        candidate.lookup_only = is_recorded;
        if is_recorded { ParkedVerdict::ReadBody } else { ParkedVerdict::Decline }
    }

    async fn accept_parked(
        &self,
        candidate: DeferCandidate,
        head: HttpRequestHead,
        body: Option<Bytes>,
    ) -> Option<Reply> {
        match body {
            Some(body) if candidate.lookup_only => {
                let fingerprint = RequestFingerprint::compute(&head.method, &head.target, &body);
                self.look_up_record(candidate, Some(fingerprint)).await
            }
            Some(body) => self.store_request(candidate, head, &body).await,
            // A request that can't be stored may have been accepted or run before.
            None if candidate.parked.is_recorded => self.look_up_record(candidate, None).await,
            None => None,
        }
    }
}

impl<R: RequestKind> DeferLayer<R> {
    /// Returns the snapshots of the request; `None` if it may not be stored.
    fn storable_snapshots(
        &self,
        candidate: &mut DeferCandidate,
        head: &HttpRequestHead,
    ) -> Option<SavedSnapshots> {
        let lock = candidate.parked.log_name();
        let StorageSettings { header_filter, head_limit, .. } = &self.0.storage;
        let Some(snapshots) = std::mem::take(&mut candidate.snapshots).save_all() else {
            crate::throttle::throttled!(
                error,
                %lock, "not deferred: a snapshot could not be serialized"
            );
            return None;
        };
        self.0.warn_missing_user(&snapshots);
        // The owner is often a header, and is stored in addition to it.
        let bytes =
            stored_head_len(&head.target, &head.headers, header_filter) + candidate.owner.len();
        if bytes > *head_limit {
            tracing::debug!(%lock, bytes, head_limit, "not deferred: the request head is too long");
            return None;
        }
        let mut names = head.headers.iter().map(|(name, _)| name);
        let withheld = names.find_map(|name| header_filter.withheld_credential(name));
        match withheld.filter(|_| snapshots.is_empty()) {
            None => Some(snapshots),
            Some(credential) => {
                warn_credential_once(&lock, credential);
                None
            }
        }
    }
}
