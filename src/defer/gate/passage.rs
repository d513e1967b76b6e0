//! The way of a request through the gate.

use std::{convert::Infallible, fmt};

use bytes::Bytes;

use super::{
    ask::Applied,
    direct::{DirectAnswer, RunFacts, verdict},
    settings::{DeferGate, What},
    warnings::note_credential,
};
use crate::{
    defer::{
        headers::{is_upgrade, stored_bytes},
        snapshot::{Captured, Carried},
    },
    gate::{
        Asked, Detached, Gate, Head, Outcome, Parked, Parting, PickUp, Print, Room, Slot, Trying,
        Verdict, View,
    },
    reply::Reply,
};

/// What stands between asking and leaving. It is moved with the future of every request, so there is more of it
/// only for those that need it.
#[derive(Debug)]
pub struct DeferTicket {
    pub(super) slot: Slot,
    pub(super) more: Option<Box<More>>,
}

/// What a request has that most have not.
#[derive(Default)]
pub(super) struct More {
    owner: String,
    applied: Applied,
    captured: Captured,
    /// Where it is remembered.
    pub(super) answer: DirectAnswer,
}

/// Without whose it is: it ends up in a log sooner or later.
impl fmt::Debug for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("More").finish_non_exhaustive()
    }
}

impl DeferTicket {
    pub(super) fn plain(slot: Slot) -> Self {
        Self { slot, more: None }
    }

    pub(super) fn new(slot: Slot, owner: String, applied: Applied, captured: Captured) -> Self {
        let more = More { owner, applied, captured, ..More::default() };
        Self { slot, more: Some(Box::new(more)) }
    }
}

/// What the layer knows of a request it may take over.
pub struct DeferParked {
    pub(super) parked: Parked,
    pub(super) slot: Slot,
    pub(super) owner: String,
    pub(super) applied: Applied,
    pub(super) captured: Captured,
    /// What it takes along, once it is picked up.
    pub(super) carried: Carried,
    /// It may not be stored, and is read for its fingerprint alone.
    pub(super) only_looks: bool,
}

/// As above: neither whose it is nor what it carries.
impl fmt::Debug for DeferParked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parked, only_looks, .. } = self;
        f.debug_struct("DeferParked")
            .field("parked", parked)
            .field("only_looks", only_looks)
            .finish_non_exhaustive()
    }
}

impl<N: ?Sized + 'static> Gate<N> for DeferGate<N> {
    type Facts = Infallible;
    type Ticket = DeferTicket;
    type Quick = DeferTicket;
    type Parked = DeferParked;

    const PARKS: bool = true;

    fn check(&self) {
        self.0.check();
    }

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<Infallible, DeferTicket> {
        self.read(view)
    }

    async fn enter(&self, facts: Infallible) -> Verdict<DeferTicket> {
        match facts {}
    }

    /// The handler sees nothing of it; the lock found it in the request.
    fn show<V: View<Native = N>>(&self, _: &DeferTicket, _: &mut V) {}

    fn ticket(&self, quick: DeferTicket) -> DeferTicket {
        quick
    }

    fn is_settled(&self, ticket: &DeferTicket) -> bool {
        !self.0.when.always && ticket.slot.is_empty()
    }

    fn hear(&self, ticket: &mut DeferTicket, fields: impl FnOnce() -> Vec<(String, Vec<u8>)>) {
        if ticket.slot.has_begun() {
            ticket.more.get_or_insert_default().answer.hear(fields());
        }
    }

    fn detach(&self, ticket: &mut DeferTicket) -> Option<Detached> {
        if !ticket.slot.remembers() {
            return None;
        }
        let limit = self.0.keys.response_limit;
        ticket.more.get_or_insert_default().answer.collect(limit);
        Some(Detached::new(ticket.slot.clone()))
    }

    fn hear_body(&self, ticket: &mut DeferTicket, chunk: &[u8]) {
        if let Some(more) = &mut ticket.more {
            more.answer.hear_body(chunk);
        }
    }

    async fn leave(
        &self,
        mut ticket: DeferTicket,
        outcome: Outcome,
    ) -> Parting<DeferTicket, DeferParked> {
        if self.ends_with_body(&mut ticket, outcome) {
            return Parting::Keep(ticket);
        }
        let DeferTicket { slot, more } = ticket;
        let facts = RunFacts::of(&slot);
        if let Some((begun, print)) = slot.begun() {
            let answer = more.map(|more| more.answer).unwrap_or_default();
            let verdict = verdict(Some(&answer), outcome, facts);
            self.end(begun, print, (answer, outcome), verdict).await;
            // A retry layer in between may have met a busy lock after the one that has run.
            return Parting::Fields(Vec::new());
        }
        let More { owner, applied, captured, .. } = more.map(|more| *more).unwrap_or_default();
        match slot.empty() {
            // Only if the busy answer itself came out: a retry or cache layer may have done better.
            Some(parked) if outcome.status() == Some(parked.status) => {
                let what = &self.0.what;
                let room = Room::new(what.body_limit, what.budget, what.read);
                let place = slot.clone();
                let carried = Carried::new();
                let only_looks = false;
                let parked =
                    DeferParked { parked, slot, owner, applied, captured, carried, only_looks };
                Parting::Accept { parked, room, slot: place }
            }
            _ if slot.trying() == Trying::Background && !slot.was_seen() => unlocked(outcome),
            _ => Parting::Fields(Vec::new()),
        }
    }

    fn pick_up<V: View<Native = N>>(
        &self,
        parked: &mut DeferParked,
        head: &Head,
        view: &mut V,
        room: &mut Room,
    ) -> PickUp {
        // What was accepted before is compared with that.
        let known = parked.parked.known;
        let unread = if known { PickUp::Head } else { PickUp::Nothing };
        let is_upgrade = is_upgrade(view.method(), &view.header("upgrade"));
        if is_upgrade {
            return unread;
        }
        if !room.hold(head, self.0.what.client.share(view)) {
            let lock = parked.parked.key.hashed();
            tracing::debug!(%lock, "not deferred: no room in the buffer budget for the request's head");
            return unread;
        }
        if parked.parked.unfit {
            parked.only_looks = true;
            return PickUp::Whole;
        }
        if let Some(carried) = self.carried(parked, head) {
            parked.carried = carried;
            return PickUp::Whole;
        }
        parked.only_looks = known;
        if known { PickUp::Whole } else { PickUp::Nothing }
    }

    async fn accept(&self, parked: DeferParked, head: Head, body: Option<Bytes>) -> Option<Reply> {
        match body {
            Some(body) if parked.only_looks => {
                let print = Print::of(&head.method, &head.target, &body);
                self.look_up(parked, Some(print)).await
            }
            Some(body) => self.store(parked, head, &body).await,
            // What can't be stored may still have been accepted, or have run, before.
            None if parked.parked.known => self.look_up(parked, None).await,
            None => None,
        }
    }
}

impl<N: ?Sized + 'static> DeferGate<N> {
    /// What the request takes along; `None` if it may not be stored.
    fn carried(&self, parked: &mut DeferParked, head: &Head) -> Option<Carried> {
        let lock = parked.parked.key.hashed();
        let What { fields, head_limit, .. } = &self.0.what;
        let Some(carried) = std::mem::take(&mut parked.captured).write() else {
            crate::throttle::throttled!(error, %lock, "not deferred: a snapshot can't be written");
            return None;
        };
        // An owner is often one of the fields, and stored beside them.
        let bytes = stored_bytes(&head.target, &head.headers, fields) + parked.owner.len();
        if bytes > *head_limit {
            tracing::debug!(%lock, bytes, head_limit, "not deferred: the request's head is too long");
            return None;
        }
        let mut names = head.headers.iter().map(|(name, _)| name);
        let withheld = names.find_map(|name| fields.withheld_credential(name));
        match withheld.filter(|_| carried.is_empty()) {
            None => Some(carried),
            Some(credential) => {
                note_credential(&lock, credential);
                None
            }
        }
    }
}

/// Of a layer that defers always, and has met no lock. What a layer between answers in its own name (401, 404, 429)
/// stands: it has come to no handler.
fn unlocked<T, P>(outcome: Outcome) -> Parting<T, P> {
    if outcome.status().is_none_or(|status| status >= 400) {
        return Parting::Fields(Vec::new());
    }
    crate::throttle::throttled!(
        error,
        layer = "DeferLayer",
        "request answered by 500: the layer is set to `defer_always`, and there is no LockLayer inside that locks \
         it, under whose lock it could run later; so it ran at once"
    );
    Parting::Replace(Reply::wiring_fault())
}
