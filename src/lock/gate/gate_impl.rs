//! `Gate` implementation of `LockLayer`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    LockLayer,
    lock_entry_context::{EntryFailure, LockEntryContext},
    lock_ticket::{AdmittedRequestLocks, LockTicket, UnmatchedRequestTicket},
};
use crate::{
    gate::{
        DirectRunRefusals, Gate, GateRequest, HttpRequestHead, InitialVerdict, LeaveAction,
        LockInstruction, ParkingSlot, RequestFingerprint, RequestKind, RequestScope,
        ServiceOutcome, UnderLockMark, Verdict,
    },
    lock::{
        held_lock_view::HeldLocks,
        lock_outcome::{AcquireError, LockOutcome},
        lock_set::LockSet,
        lock_span::LockSpan,
    },
    reply::Reply,
};

impl<R: RequestKind> Gate<R::Native> for LockLayer<R> {
    type EntryContext = LockEntryContext;
    type Ticket = LockTicket;
    type LightTicket = UnmatchedRequestTicket;
    type AcceptTicket = Infallible;

    fn inspect<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<LockEntryContext, UnmatchedRequestTicket> {
        self.inspect_request(view)
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice; a request's future must stay below 1 KiB"
    )]
    fn enter(
        &self,
        mut context: LockEntryContext,
    ) -> impl Future<Output = Verdict<LockTicket>> + Send {
        async move {
            if let Some(replay) = context.replay() {
                replay.clear_busy_status();
            }
            if context.is_unresolved() {
                match Box::pin(context.resolve_reentrancy()).await {
                    Ok(()) => {}
                    Err(EntryFailure::Reply(reply)) => return Verdict::Answer(reply),
                    Err(EntryFailure::Fault(error)) => {
                        return self.outage_verdict(context, &error);
                    }
                }
            }
            let may_wait =
                |slot: &ParkingSlot| matches!(slot.instruction(), LockInstruction::WaitFor(_));
            if context.is_deferrable() && !context.slot.as_ref().is_none_or(may_wait) {
                return self.defer_without_attempt(context);
            }
            if let Some(reentrant_locks) = context.take_reentrant_locks() {
                return Box::pin(self.enter_reentrant(context, reentrant_locks)).await;
            }
            let span = LockSpan::start(&context.store, &context.keys, context.mode);
            let mut acquired = self.acquire_locks(&context).await;
            let acquire = (&context.store, &*context.keys, self.max_wait(&context));
            span.end_wait(acquire, &mut acquired, LockSet::guards_mut);
            clear_slot(context.slot.as_ref());
            match acquired {
                Ok(LockOutcome::Granted(guards)) => {
                    if let Some(route) = &context.route {
                        guards.record_route(route);
                    }
                    let average_hold_time = Arc::clone(&self.average_hold_time);
                    let locks = AdmittedRequestLocks::Acquired {
                        guards,
                        average_hold_time,
                        acquired_at: Instant::now(),
                    };
                    Verdict::Pass(
                        LockTicket::new(locks, context.take_held_locks()).with_slot(context.slot),
                    )
                }
                Ok(LockOutcome::Busy(busy)) | Err(AcquireError::Busy(busy)) => {
                    self.busy_verdict(context, &busy, false)
                }
                Ok(LockOutcome::RecordExists) => self.duplicate_verdict(context),
                Ok(LockOutcome::TooManyKeys(remaining)) => {
                    let reply = Reply::too_many_idempotency_keys(remaining);
                    self.record_refusal(&context, reply.status);
                    Verdict::Answer(reply)
                }
                Err(AcquireError::WouldDeadlock) => Verdict::Answer(would_deadlock_reply()),
                Err(AcquireError::Fault(error)) => self.outage_verdict(context, &error),
            }
        }
    }

    fn annotate_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        ticket: &LockTicket,
        view: &mut V,
    ) {
        let layer_locks = ticket.layer_locks();
        if let Some(first_lock) = layer_locks.iter().next() {
            view.insert_extension(first_lock.clone());
        }
        self.policy.set_fence_header(&layer_locks, view);
        view.insert_extension(ticket.held_locks.clone());
        if let Some(run) = DirectRunRefusals::from_view(view) {
            run.record_passed(self.gate_id());
        }
        if let Some(slot) = &ticket.slot {
            slot.mark_handler_called();
            if let Some(run) = slot.direct_run_refusals() {
                run.attach_to(view, self.gate_id());
            }
        }
        UnderLockMark::set_on(view);
    }

    fn full_ticket(&self, _: UnmatchedRequestTicket) -> LockTicket {
        LockTicket::new(
            AdmittedRequestLocks::Unmatched(Arc::clone(&self.unlocked_success_logged)),
            HeldLocks::default(),
        )
    }

    fn request_scope(&self, ticket: &LockTicket) -> RequestScope {
        ticket.held_locks.to_scope()
    }

    fn cancellation(&self, ticket: &LockTicket) -> impl Future<Output = ()> + Send + 'static {
        self.release_settings.wait_for_loss(ticket)
    }

    fn body_read_timeout(&self, ticket: &LockTicket) -> Option<Duration> {
        self.release_settings.body_read_timeout_for(ticket)
    }

    fn observe_headers(
        &self,
        ticket: &mut LockTicket,
        response_headers: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        self.release_settings.note_reported_loss(ticket, response_headers);
    }

    fn body_fingerprint(
        &self,
        ticket: &LockTicket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<RequestFingerprint> {
        ticket.slot.as_ref()?.start_fingerprint(head)
    }

    fn leave(
        &self,
        ticket: LockTicket,
        outcome: ServiceOutcome,
    ) -> impl Future<Output = LeaveAction<LockTicket, Self::AcceptTicket>> + Send {
        let slot = ticket.slot.clone();
        self.release_settings.settle(ticket, outcome).inspect(move |action| {
            // Otherwise the progress of the handler is unknown.
            let response_stands =
                outcome != ServiceOutcome::Stopped && !matches!(action, LeaveAction::Replace(_));
            if let Some(slot) =
                slot.filter(|_| response_stands || outcome == ServiceOutcome::RequestBodyTimeout)
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
pub(super) fn clear_slot(slot: Option<&ParkingSlot>) {
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
