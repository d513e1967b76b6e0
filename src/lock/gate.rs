//! `LockGate`: the lock around a request.

mod acquire;

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    average_hold_time::AverageHoldTime,
    held_lock::HeldLocks,
    lock_context::{LockContext, ReentrancyError},
    lock_set::LockSet,
    outcome::{AcquireError, LockBusy, LockOutcome},
    policy::LockPolicy,
    release_settings::ReleaseSettings,
    ticket::{LockTicket, LockTicketKind, UnmatchedRequest},
};
use crate::{
    gate::{
        AttemptMode, Gate, GateId, GateRequest, HttpRequestHead, InitialVerdict, KeySource,
        LeaveAction, ParkingContext, ParkingSlot, RefusalTracker, RequestFingerprint, RequestScope,
        ServiceOutcome, UnderLockMark, Verdict,
    },
    reply::{Reply, problem},
};

/// Policy of a `LockLayer`: the lock that a request acquires, and the response if it is busy.
pub struct LockGate<N: ?Sized> {
    pub(super) key_source: KeySource<N>,
    pub(super) policy: Arc<LockPolicy>,
    pub(super) release_settings: ReleaseSettings,
    /// Shared by all clones of this layer.
    average_hold_time: Arc<AverageHoldTime>,
    /// True once it was logged that a request without a matching route was served. Shared as well.
    unlocked_success_logged: Arc<AtomicBool>,
}

impl<N: ?Sized> LockGate<N> {
    /// Creates the policy of a lock for each key, tried once, on unsafe methods.
    ///
    /// # Panics
    ///
    /// If the source allows requests without a key: see [`KeySource::require_key`].
    #[must_use]
    pub fn new(source: KeySource<N>) -> Self {
        let (policy, ends) = (Arc::default(), ReleaseSettings::default());
        let (times, unlocked) = (Arc::default(), Arc::default());
        let source = source.require_key();
        Self {
            key_source: source,
            policy,
            release_settings: ends,
            average_hold_time: times,
            unlocked_success_logged: unlocked,
        }
    }

    fn gate_id(&self) -> GateId {
        GateId::of(&self.average_hold_time)
    }

    /// Records a refusal for the direct run that the request belongs to.
    fn record_refusal(&self, facts: &LockContext, status: u16) {
        if let Some(run) = facts.remembered_run() {
            run.record_refused(self.gate_id(), status);
        }
    }

    /// Leaves the request to an outer layer without an attempt.
    fn defer_without_attempt(&self, facts: LockContext) -> Verdict<LockTicket> {
        // The state of the lock is unknown. If the outer layer does not accept the request, the
        // lock may well be free.
        self.busy_verdict(
            facts,
            &LockBusy { lease_remaining: Duration::from_secs(1), queue_length: 0, waited: None },
            false,
        )
    }

    fn busy_verdict(
        &self,
        facts: LockContext,
        busy: &LockBusy,
        known: bool,
    ) -> Verdict<LockTicket> {
        let status = self.policy.busy_status.code();
        self.record_refusal(&facts, status);
        let replay = facts.replay().cloned();
        let unfit = !facts.is_deferrable();
        let LockContext { store, keys, slot, .. } = facts;
        // Of several locks, the one that the idempotency record is stored beside, if there is one.
        let first = keys.into_iter().min_by(LockSet::compare_keys);
        let Some(key) = first else { return Verdict::Answer(Reply::misconfigured()) };
        tracing::debug!(
            node = %store.node(), lock = %key.log_hash(), queue_length = busy.queue_length,
            "request refused: the lock is busy"
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

    fn outage_verdict(&self, mut facts: LockContext, error: &crate::Error) -> Verdict<LockTicket> {
        crate::throttle::throttled!(
            error,
            node = %facts.store.node(), %error, policy = ?self.policy.outage,
            "no lock: the store is unavailable"
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

impl<N: ?Sized + 'static> Gate<N> for LockGate<N> {
    type EntryContext = LockContext;
    type Ticket = LockTicket;
    type LightTicket = UnmatchedRequest;
    type AcceptTicket = Infallible;

    fn inspect<V: GateRequest<NativeRequest = N>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<LockContext, UnmatchedRequest> {
        self.read_request(view)
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice; a request's future must stay below 1 KiB"
    )]
    fn enter(&self, mut facts: LockContext) -> impl Future<Output = Verdict<LockTicket>> + Send {
        async move {
            if let Some(replay) = facts.replay() {
                replay.clear_busy_status();
            }
            if facts.is_unresolved() {
                match Box::pin(facts.resolve_reentrancy()).await {
                    Ok(()) => {}
                    Err(ReentrancyError::Reply(reply)) => return Verdict::Answer(reply),
                    Err(ReentrancyError::Fault(error)) => {
                        return self.outage_verdict(facts, &error);
                    }
                }
            }
            let tries = |slot: &ParkingSlot| matches!(slot.mode(), AttemptMode::WaitFor(_));
            if facts.is_deferrable() && !facts.slot.as_ref().is_none_or(tries) {
                return self.defer_without_attempt(facts);
            }
            if let Some(lent) = facts.take_reentrant_ticket() {
                return Box::pin(self.enter_reentrant(facts, lent)).await;
            }
            let taken = self.acquire_locks(&facts).await;
            clear_slot(facts.slot.as_ref());
            match taken {
                Ok(LockOutcome::Granted(guard)) => {
                    let times = Arc::clone(&self.average_hold_time);
                    let own = LockTicketKind::Acquired {
                        guards: guard,
                        average_hold_time: times,
                        acquired_at: Instant::now(),
                    };
                    Verdict::Pass(
                        LockTicket::new(own, facts.take_held_locks()).with_slot(facts.slot),
                    )
                }
                Ok(LockOutcome::Busy(busy)) | Err(AcquireError::Busy(busy)) => {
                    self.busy_verdict(facts, &busy, false)
                }
                Ok(LockOutcome::RecordExists) => self.duplicate_verdict(facts),
                Ok(LockOutcome::TooManyKeys(left)) => {
                    let reply = Reply::too_many_idempotency_keys(left);
                    self.record_refusal(&facts, reply.status);
                    Verdict::Answer(reply)
                }
                Err(AcquireError::WouldDeadlock) => Verdict::Answer(would_deadlock_reply()),
                Err(AcquireError::Fault(error)) => self.outage_verdict(facts, &error),
            }
        }
    }

    fn annotate_request<V: GateRequest<NativeRequest = N>>(
        &self,
        ticket: &LockTicket,
        view: &mut V,
    ) {
        let held = ticket.layer_locks();
        if let Some(first) = held.iter().next() {
            view.insert_extension(first.clone());
        }
        self.policy.set_fence_header(&held, view);
        view.insert_extension(ticket.1.clone());
        if let Some(run) = RefusalTracker::from_view(view) {
            run.record_passed(self.gate_id());
        }
        if let Some(slot) = &ticket.2 {
            slot.mark_handler_called();
            if let Some(run) = slot.refusal_tracker() {
                run.attach_to(view, self.gate_id());
            }
        }
        UnderLockMark::set_on(view);
    }

    fn full_ticket(&self, _: UnmatchedRequest) -> LockTicket {
        LockTicket::new(
            LockTicketKind::Unmatched(Arc::clone(&self.unlocked_success_logged)),
            HeldLocks::default(),
        )
    }

    fn request_scope(&self, ticket: &LockTicket) -> RequestScope {
        ticket.1.to_scope()
    }

    fn cancellation(&self, ticket: &LockTicket) -> impl Future<Output = ()> + Send + 'static {
        self.release_settings.wait_for_loss(ticket)
    }

    fn body_read_timeout(&self, ticket: &LockTicket) -> Option<Duration> {
        self.release_settings.body_deadline_for(ticket)
    }

    fn observe_headers(
        &self,
        ticket: &mut LockTicket,
        fields: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        self.release_settings.note_reported_loss(ticket, fields);
    }

    fn body_fingerprint(
        &self,
        ticket: &LockTicket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<RequestFingerprint> {
        ticket.2.as_ref()?.start_fingerprint(head)
    }

    fn leave(
        &self,
        ticket: LockTicket,
        outcome: ServiceOutcome,
    ) -> impl Future<Output = LeaveAction<LockTicket, Self::AcceptTicket>> + Send {
        let slot = ticket.2.clone();
        self.release_settings.settle(ticket, outcome).inspect(move |parting| {
            // Otherwise the progress of the handler is unknown.
            let stands =
                outcome != ServiceOutcome::Stopped && !matches!(parting, LeaveAction::Replace(_));
            if let Some(slot) =
                slot.filter(|_| stands || outcome == ServiceOutcome::RequestBodyTimeout)
            {
                slot.mark_answered();
            }
        })
    }

    async fn accept_parked(
        &self,
        parked: Self::AcceptTicket,
        _: HttpRequestHead,
        _: Option<Bytes>,
    ) -> Option<Reply> {
        match parked {}
    }
}

/// Clears a slot that an earlier attempt may have filled: a retry layer in between may have met a
/// busy lock before. A request that runs now, with a lock or during an outage, must not be deferred
/// too.
fn clear_slot(slot: Option<&ParkingSlot>) {
    if let Some(slot) = slot {
        slot.take_parking();
        slot.clear_answered();
    }
}

pub(super) fn would_deadlock_reply() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "LockLayer",
        "request refused: nested layers would deadlock: an outer LockLayer holds this lock shared \
         or by a permit, and this one needs it in another mode or with fewer permits; use the same \
         mode in both layers, or an exclusive lock in the outer one"
    );
    Reply::misconfigured()
}

impl<N: ?Sized> Clone for LockGate<N> {
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

impl<N: ?Sized> fmt::Debug for LockGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGate")
            .field("key_source", &self.key_source)
            .field("policy", &self.policy)
            .field("release_settings", &self.release_settings)
            .finish_non_exhaustive()
    }
}
