//! `DeferGate`: accepts what its inner lock finds busy.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;

use super::{
    envelope::{At, write_request},
    headers::{idempotency_key, is_upgrade, of_request},
    snapshot::{Captured, Captures, Snapshot},
    unwatched::Workers,
};
use crate::{
    gate::{
        Asked, Gate, Head, Outcome, Parked, Parting, Route, Slot, UnderLock, Verdict, View,
        current_replay, is_safe,
    },
    key::{SHARDS, digest, hex},
    reply::{Reply, problem},
    store::{Caps, Enqueue, Enqueued, JobId, JobPolicy, JobState},
};

type Owner<N> = dyn Fn(&N) -> Option<String> + Send + Sync;

/// How long an `Idempotency-Key` is remembered.
const RECORD: Duration = Duration::from_secs(24 * 60 * 60);

/// The policy of a `DeferLayer`: what is deferred, and within which bounds.
pub struct DeferGate<N: ?Sized>(Arc<Settings<N>>);

struct Settings<N: ?Sized> {
    status_at: String,
    body_limit: usize,
    keep: Vec<String>,
    max_attempts: u32,
    caps: Caps,
    owner: Option<Arc<Owner<N>>>,
    carries: Captures<N>,
}

impl<N: ?Sized> DeferGate<N> {
    /// Defers unsafe requests with bodies up to 64 KiB; the status resource is at `/deferred`.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Settings {
            status_at: "/deferred".to_owned(),
            body_limit: 64 * 1024,
            keep: Vec::new(),
            max_attempts: 5,
            caps: Caps {
                resource_jobs: 1_000,
                resource_bytes: 16 << 20,
                shard_jobs: 100_000u64.div_ceil(u64::from(SHARDS)),
                shard_bytes: (1u64 << 30) / u64::from(SHARDS),
            },
            owner: None,
            carries: Captures::default(),
        }))
    }

    /// See `DeferLayer::status_at`.
    #[must_use]
    pub fn status_at(self, path: &str) -> Self {
        let path = format!("/{}", path.trim_matches('/'));
        self.with(|settings| settings.status_at = path)
    }

    /// See `DeferLayer::body_limit`.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.with(|settings| settings.body_limit = bytes)
    }

    /// See `DeferLayer::keep_header`.
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        self.with(|settings| settings.keep.push(name.to_ascii_lowercase()))
    }

    /// See `DeferLayer::max_attempts`.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|settings| settings.max_attempts = attempts.max(1))
    }

    /// See `DeferLayer::max_jobs`.
    #[must_use]
    pub fn max_jobs(self, per_resource: u64) -> Self {
        self.with(|settings| settings.caps.resource_jobs = per_resource)
    }

    /// See `DeferLayer::owner`.
    #[must_use]
    pub fn owner(self, owner: impl Fn(&N) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.owner = Some(Arc::new(owner)))
    }

    /// See `DeferLayer::carry`; `find` looks into the request's extensions.
    #[must_use]
    pub fn carry<T: Snapshot>(
        self,
        find: impl Fn(&N) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.carries.add(find))
    }

    fn with(self, change: impl FnOnce(&mut Settings<N>)) -> Self {
        let mut settings = (*self.0).clone();
        change(&mut settings);
        Self(Arc::new(settings))
    }

    fn location(&self, id: &JobId) -> String {
        format!("{}/{id}", self.0.status_at)
    }

    fn accepted(&self, id: &JobId, state: JobState, position: Option<u64>) -> Reply {
        let body = json!({ "id": id.as_str(), "state": state.as_str(), "position": position });
        Reply::json(202, &body)
            .field("location", self.location(id))
            .retry_after(Duration::from_secs(1))
    }

    /// A request that was accepted before: its job, whatever has become of it.
    async fn known(&self, parked: &Parked, id: &JobId) -> Reply {
        match parked.store.backend().job(id.clone()).await {
            Ok(Some(job)) => self.accepted(id, job.state, job.position),
            // The record outlives what is kept of the job.
            Ok(None) => {
                let title = "This request was accepted before, and its result is no longer kept";
                Reply::problem(410, problem::UNKNOWN_JOB, title)
            }
            // A read that fails does not make it less accepted.
            Err(_) => self.accepted(id, JobState::Queued, None),
        }
    }
}

/// What stands between asking and leaving.
#[derive(Debug)]
pub struct DeferTicket {
    slot: Slot,
    owner: String,
    captured: Captured,
}

/// What the layer knows of a request it may take over.
#[derive(Debug)]
pub struct DeferParked {
    parked: Parked,
    record: Option<Arc<str>>,
    owner: String,
    captured: Captured,
}

impl<N: ?Sized + 'static> Gate<N> for DeferGate<N> {
    type Facts = DeferTicket;
    type Ticket = DeferTicket;
    type Parked = DeferParked;

    const PARKS: bool = true;

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<DeferTicket> {
        // A replay is never deferred again: it would be an endless job.
        if is_safe(view.method()) || current_replay(view).is_some() {
            return Asked::Skip;
        }
        if view.get::<UnderLock>().is_some() {
            tracing::error!(
                layer = "DeferLayer",
                "request refused: this layer is inside a LockLayer; put it outside (axum: .layer() \
                 it after the LockLayer, actix-web: .wrap() it after)"
            );
            return Asked::Answer(Reply::wiring_fault());
        }
        let route = view.route();
        if route == Route::Unmatched || is_upgrade(view.method(), &view.header("upgrade")) {
            return Asked::Skip;
        }
        let Ok(key) = idempotency_key(&view.header("idempotency-key")) else {
            let title = "Idempotency-Key must be one string of 1 to 255 visible characters";
            return Asked::Answer(Reply::problem(400, problem::BAD_IDEMPOTENCY_KEY, title));
        };
        let owner = self.0.owner.as_ref().and_then(|owner| owner(view.native()));
        let owner = owner.unwrap_or_default();
        let record = key.map(|key| {
            let route = match route {
                Route::Matched(pattern) => pattern,
                Route::Unmatched | Route::Unknown => String::new(),
            };
            let parts = [owner.as_bytes(), view.method().as_bytes(), route.as_bytes()];
            hex(&digest(&[parts[0], parts[1], parts[2], key.as_bytes()])[..16]).into()
        });
        let captured = self.0.carries.of(view.native());
        Asked::Enter(DeferTicket { slot: Slot::new(record), owner, captured })
    }

    async fn enter(&self, ticket: DeferTicket) -> Verdict<DeferTicket> {
        Verdict::Pass(ticket)
    }

    fn show<V: View<Native = N>>(&self, ticket: &DeferTicket, view: &mut V) {
        view.put(ticket.slot.clone());
    }

    async fn leave(
        &self,
        ticket: DeferTicket,
        outcome: Outcome,
    ) -> Parting<DeferTicket, DeferParked> {
        let DeferTicket { slot, owner, captured } = ticket;
        match slot.empty() {
            // Only if the busy answer itself came out: a retry or cache layer may have done better.
            Some(parked) if outcome.status() == Some(parked.status) => {
                let parked = DeferParked { parked, record: slot.record(), owner, captured };
                Parting::Accept { parked, limit: self.0.body_limit }
            }
            _ => Parting::Fields(Vec::new()),
        }
    }

    async fn accept(&self, parked: DeferParked, head: Head, body: Bytes) -> Option<Reply> {
        let DeferParked { parked, record, owner, captured } = parked;
        let Some(carried) = captured.write() else {
            tracing::error!(lock = %parked.key.hashed(), "not deferred: a snapshot can't be written");
            return None;
        };
        let Some(headers) = of_request(&head.headers, &self.0.keep, !carried.is_empty()) else {
            tracing::info!(
                lock = %parked.key.hashed(),
                "not deferred: the request carries a credential; .carry::<T>() stores whose it is, \
                 .keep_header(..) the field itself"
            );
            return None;
        };
        let again = matches!(&*head.method, "PUT" | "DELETE");
        let print = digest(&[head.method.as_bytes(), head.target.as_bytes(), &body]);
        let id = JobId::new(&parked.key);
        let max_attempts = if again { self.0.max_attempts } else { 1 };
        let at = At { store: &parked.store, id: &id, lock: &parked.key };
        let call = Enqueue {
            key: parked.key.clone(),
            id: id.clone(),
            envelope: write_request(at, head, headers, carried, max_attempts, &body),
            policy: JobPolicy { again, max_attempts, ..JobPolicy::default() },
            record: record.map(|record| (record, hex(&print[..16]), RECORD)),
            caps: self.0.caps,
            merge: None,
            owner,
        };
        let (store, lock) = (&parked.store, parked.key.hashed());
        match store.backend().enqueue(call).await {
            Ok(Enqueued::Stored { position }) => {
                tracing::info!(node = %store.node(), %lock, job = ?id, position, "request deferred");
                store.room::<Workers>().look(store, &id).await;
                Some(self.accepted(&id, JobState::Queued, Some(position)))
            }
            Ok(Enqueued::Known(id) | Enqueued::Merged(id)) => Some(self.known(&parked, &id).await),
            Ok(Enqueued::Mismatch) => {
                let title = "This Idempotency-Key was used for another request";
                Some(Reply::problem(422, problem::KEY_REUSED, title))
            }
            Ok(Enqueued::Full | Enqueued::Unmanned) => {
                tracing::warn!(node = %store.node(), %lock, "not deferred: a line is full");
                None
            }
            Err(error) => {
                tracing::error!(node = %store.node(), %lock, %error, "not deferred: store away");
                error.may_have_run().then(|| self.outcome_unknown(&id))
            }
        }
    }
}

impl<N: ?Sized> DeferGate<N> {
    /// It may be stored: the status resource tells the truth once the store is back.
    fn outcome_unknown(&self, id: &JobId) -> Reply {
        let title = "The request may have been accepted; its location tells";
        Reply::problem(503, problem::OUTCOME_UNKNOWN, title)
            .field("location", self.location(id))
            .retry_after(Duration::from_secs(1))
    }
}

impl<N: ?Sized> Default for DeferGate<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: ?Sized> Clone for DeferGate<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: ?Sized> Clone for Settings<N> {
    fn clone(&self) -> Self {
        Self {
            status_at: self.status_at.clone(),
            body_limit: self.body_limit,
            keep: self.keep.clone(),
            max_attempts: self.max_attempts,
            caps: self.caps,
            owner: self.owner.clone(),
            carries: self.carries.clone(),
        }
    }
}

impl<N: ?Sized> fmt::Debug for DeferGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferGate")
            .field("status_at", &self.0.status_at)
            .field("body_limit", &self.0.body_limit)
            .field("keep", &self.0.keep)
            .field("max_attempts", &self.0.max_attempts)
            .finish_non_exhaustive()
    }
}
