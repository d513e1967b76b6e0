//! The way of a request through the gate.

use std::{convert::Infallible, fmt};

use bytes::Bytes;

use super::{
    ask::Applied,
    settings::{DeferGate, What},
    warnings::note_credential,
};
use crate::{
    defer::{
        envelope::{At, Stored, StoredHead, write_response},
        headers::{Headers, is_upgrade, of_response, stored_bytes},
        is_stream,
        judge::is_success,
        snapshot::{Captured, Carried},
    },
    gate::{
        Asked, Begun, Gate, Head, Outcome, Parked, Parting, PickUp, Print, Room, Slot, Trying,
        Verdict, View,
    },
    reply::Reply,
};

/// What stands between asking and leaving. It is moved with the future of every request, so there is more of it
/// only for those that need it.
#[derive(Debug)]
pub struct DeferTicket {
    slot: Slot,
    more: Option<Box<More>>,
}

/// What a request has that most have not.
#[derive(Default)]
struct More {
    owner: String,
    applied: Applied,
    captured: Captured,
    /// Of the answer, where it is remembered.
    fields: Headers,
    /// Nobody knows how long its body is: it is made as it is sent.
    streams: bool,
    /// Its status, while that goes on.
    head: Option<u16>,
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

    /// Whether it is known only at the end of the body what is remembered of the request: the handler may do its work in it,
    /// and fail. Not so of what has no end.
    fn ends_with_body(&mut self, outcome: Outcome) -> bool {
        let begun = self.slot.has_begun();
        let Some(more) = self.more.as_mut().filter(|more| begun && more.streams) else {
            return false;
        };
        more.head = match outcome {
            Outcome::Streams(status) if is_remembered(status) => Some(status),
            Outcome::Ended => return false,
            _ => None,
        };
        more.head.is_some()
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
            let (fields, more) = (fields(), ticket.more.get_or_insert_default());
            let known = |(name, value): &(String, Vec<u8>)| match name.as_str() {
                "content-length" => true,
                "content-type" => is_stream(value),
                _ => false,
            };
            more.streams = !fields.iter().any(known);
            more.fields = of_response(fields, &[]);
        }
    }

    async fn leave(
        &self,
        mut ticket: DeferTicket,
        outcome: Outcome,
    ) -> Parting<DeferTicket, DeferParked> {
        if ticket.ends_with_body(outcome) {
            return Parting::Keep(ticket);
        }
        let DeferTicket { slot, more } = ticket;
        let More { owner, applied, captured, fields, head, .. } =
            more.map(|more| *more).unwrap_or_default();
        if let Some((begun, print)) = slot.begun() {
            match stored(&begun, outcome.status().or(head), fields) {
                Some(response) => begun.keep(self.0.keys.life, response, print).await,
                None => begun.forget().await,
            }
            // A retry layer in between may have met a busy lock after the one that has run.
            return Parting::Fields(Vec::new());
        }
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
        if is_upgrade || !room.hold(head, self.0.what.client.share(view)) {
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
            tracing::info!(%lock, bytes, head_limit, "not deferred: the request's head is too long");
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

/// What is remembered of an answer; `None` if a retry is to run again.
fn stored(begun: &Begun, status: Option<u16>, headers: Headers) -> Option<Bytes> {
    let status = status.filter(|status| is_remembered(*status))?;
    let (id, lock) = begun.is()?;
    let head = StoredHead { status, headers, stored: Stored::RanAtOnce };
    Some(write_response(At { store: begun.store(), id, lock }, &head, b""))
}

/// By the same rule as a run of a deferred request, but for the answers of a busy lock: it can't be told whether
/// they are the handler's, or those of another lock further in, which a retry may find free.
fn is_remembered(status: u16) -> bool {
    is_success(status) && !matches!(status, 409 | 423)
}
