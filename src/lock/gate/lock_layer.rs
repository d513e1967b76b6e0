//! `LockLayer`: the lock around a request.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use crate::{
    gate::{GateId, KeySource, ParkingContext, RequestKind, Verdict},
    lock::{
        average_hold_time::AverageHoldTime,
        lock_entry_context::LockEntryContext,
        lock_set::LockSet,
        lock_ticket::{LockTicket, LockTicketKind},
        outcome::LockBusy,
        policy::LockPolicy,
        release_settings::ReleaseSettings,
    },
    reply::{Reply, problem},
};

/// Serializes requests per resource: 409 with `Retry-After` while another request holds the lock,
/// or a wait in its queue.
///
/// See [`lock`](crate::lock) for the handling of a request.
///
/// A lock is named by the kind of its key, the parameter's name, the scope and the value, never by
/// the layer. Two routes with the same parameter name and value therefore share a lock, which is
/// the safe default; [`scope`](Self::scope) separates them.
///
/// ```
/// # use std::{convert::Infallible, time::Duration};
/// # use http::{Request, Response};
/// # use lockgate::{Key, Store, lock::LockLayer, middleware::PlainHttp};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # type Body = http_body_util::Full<bytes::Bytes>;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let handler = service_fn(async |_: Request<Body>| {
/// #     Ok::<_, Infallible>(Response::new(Body::default()))
/// # });
/// let store = Store::memory();
/// let service = LockLayer::<PlainHttp>::by_header("order").store(&store).layer(handler);
/// let request = || Request::post("/refund").header("order", "7").body(Body::default());
///
/// // Code without a layer holds the same lock.
/// let guard = store.lock(Key::header("order", b"7")).acquire().await?;
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 409);
/// guard.release().await;
/// assert_eq!(service.oneshot(request()?).await?.status(), 200);
/// # Ok(()) }
/// ```
pub struct LockLayer<R: RequestKind> {
    pub(in crate::lock) key_source: KeySource<R>,
    pub(in crate::lock) policy: Arc<LockPolicy>,
    pub(in crate::lock) release_settings: ReleaseSettings,
    /// Shared by all clones of this layer.
    pub(super) average_hold_time: Arc<AverageHoldTime>,
    /// True once it was logged that a request without a matching route was served. Shared as well.
    pub(super) unlocked_success_logged: Arc<AtomicBool>,
}

impl<R: RequestKind> LockLayer<R> {
    /// One lock for each value of this key: one part, or a tuple of up to four. The lock is tried
    /// once, for requests with unsafe methods.
    ///
    /// # Panics
    ///
    /// If a request may have no key: see [`MissingAddress::Skip`](crate::MissingAddress::Skip).
    #[must_use]
    pub fn by(keys: impl Into<KeySource<R>>) -> Self {
        Self {
            key_source: keys.into().require_key(),
            policy: Arc::default(),
            release_settings: ReleaseSettings::default(),
            average_hold_time: Arc::default(),
            unlocked_success_logged: Arc::default(),
        }
    }

    /// Adds a part to the key.
    pub(super) fn and(mut self, source: KeySource<R>) -> Self {
        self.key_source = self.key_source.and(source.require_key());
        self
    }

    pub(super) fn with_policy(mut self, change: impl FnOnce(&mut LockPolicy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    pub(super) fn gate_id(&self) -> GateId {
        GateId::of(&self.average_hold_time)
    }

    /// Records a refusal for the direct run that the request belongs to.
    pub(super) fn record_refusal(&self, facts: &LockEntryContext, status: u16) {
        if let Some(run) = facts.remembered_run() {
            run.record_refused(self.gate_id(), status);
        }
    }

    /// Leaves the request to an outer layer without an attempt.
    pub(super) fn defer_without_attempt(&self, facts: LockEntryContext) -> Verdict<LockTicket> {
        // The state of the lock is unknown. If the outer layer does not accept the request, the
        // lock may well be free.
        self.busy_verdict(
            facts,
            &LockBusy { lease_remaining: Duration::from_secs(1), queue_length: 0, waited: None },
            false,
        )
    }

    pub(super) fn busy_verdict(
        &self,
        facts: LockEntryContext,
        busy: &LockBusy,
        known: bool,
    ) -> Verdict<LockTicket> {
        let status = self.policy.busy_status.code();
        self.record_refusal(&facts, status);
        let replay = facts.replay().cloned();
        let unfit = !facts.is_deferrable();
        let LockEntryContext { store, keys, slot, .. } = facts;
        // Of several locks, the one that the idempotency record is stored beside, if there is one.
        let first = keys.into_iter().min_by(LockSet::compare_keys);
        let Some(key) = first else { return Verdict::Answer(Reply::misconfigured()) };
        tracing::debug!(
            node = %store.node(), lock = %key.log_hash(), queue_length = busy.queue_length, "request refused: the lock is busy"
        );
        if let Some(replay) = replay {
            replay.record_busy_status(status);
        }
        let wait = self.average_hold_time.retry_after(busy);
        let mut reply =
            Reply::problem(status, problem::BUSY, "The resource is busy").retry_after(wait);
        if let Some(waited) = busy.waited {
            let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            reply = reply.with_member("waited_ms", waited);
        }
        // Only a request of one exclusive lock can be deferred. A duplicate is parked in any case,
        // because the outer layer answers it.
        let slot = slot.filter(|_| known || !unfit);
        // A request that claims to be a run, but is not trusted, is busy and not deferred.
        let slot = slot.filter(|slot| {
            if slot.claims_replay() {
                crate::throttle::throttled!(
                    warn,
                    layer = "LockLayer",
                    "a request with Lockgate-Replay was not verified, and is not deferred; if a \
                     worker sent it, set .trust_delegation(..) with the worker's secret"
                );
            }
            !slot.claims_replay()
        });
        if let Some(slot) = &slot {
            let usual = self.average_hold_time.average();
            slot.set_parking(ParkingContext {
                store,
                key,
                busy_status: reply.status,
                typical_hold: usual,
                is_recorded: known,
                is_not_deferrable: unfit,
            });
        }
        Verdict::Busy(reply, slot)
    }

    pub(super) fn outage_verdict(
        &self,
        mut facts: LockEntryContext,
        error: &crate::Error,
    ) -> Verdict<LockTicket> {
        crate::throttle::throttled!(
            error,
            node = %facts.store.node(), %error, policy = ?self.policy.outage, "no lock: the store is unavailable"
        );
        if self.policy.outage.admits(error) {
            let outer = facts.take_held_locks();
            let admitted = LockTicketKind::admitted(&facts.store, facts.keys, facts.mode, &outer);
            return Verdict::Pass(LockTicket::new(admitted, outer));
        }
        // Not parked for an outer layer, although a busy response may have the same status.
        let away = Reply::store_unavailable();
        self.record_refusal(&facts, away.status);
        if let Some(replay) = facts.replay() {
            // A run that could not start is not charged.
            replay.record_busy_status(away.status);
        }
        Verdict::Answer(away)
    }
}

impl<R: RequestKind> Clone for LockLayer<R> {
    fn clone(&self) -> Self {
        let (policy, times) = (Arc::clone(&self.policy), Arc::clone(&self.average_hold_time));
        let (source, unlocked) =
            (self.key_source.clone(), Arc::clone(&self.unlocked_success_logged));
        Self {
            key_source: source,
            policy,
            release_settings: self.release_settings,
            average_hold_time: times,
            unlocked_success_logged: unlocked,
        }
    }
}

impl<R: RequestKind> fmt::Debug for LockLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("key_source", &self.key_source)
            .field("policy", &self.policy)
            .field("release_settings", &self.release_settings)
            .finish_non_exhaustive()
    }
}
