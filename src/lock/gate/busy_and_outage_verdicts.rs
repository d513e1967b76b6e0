//! Verdicts of `LockLayer` for a request that gets no lock: the lock is busy, or the store is
//! unavailable.

use std::time::Duration;

use super::{
    LockLayer,
    lock_entry_context::LockEntryContext,
    lock_ticket::{AdmittedRequestLocks, LockTicket},
};
use crate::{
    gate::{BusyLockContext, RequestKind, Verdict},
    lock::{lock_outcome::LockBusy, lock_set::LockSet},
    reply::{Reply, problem},
};

impl<R: RequestKind> LockLayer<R> {
    /// Records a refusal for the direct run that the request belongs to.
    pub(super) fn record_refusal(&self, context: &LockEntryContext, status: u16) {
        if let Some(run) = context.direct_run() {
            run.record_refused(self.gate_id(), status);
        }
    }

    /// Leaves the request to an outer layer without an attempt.
    pub(super) fn defer_without_attempt(&self, context: LockEntryContext) -> Verdict<LockTicket> {
        // The state of the lock is unknown. If the outer layer does not accept the request, the
        // lock may well be free.
        self.busy_verdict(
            context,
            &LockBusy { lease_remaining: Duration::from_secs(1), queue_length: 0, waited: None },
            false,
        )
    }

    /// Verdict for a request whose lock is busy. Parks it in the slot of an outer layer if it can
    /// be deferred.
    pub(super) fn busy_verdict(
        &self,
        context: LockEntryContext,
        busy: &LockBusy,
        is_recorded: bool,
    ) -> Verdict<LockTicket> {
        let status = self.policy.busy_status.code();
        self.record_refusal(&context, status);
        let replay = context.replay().cloned();
        let is_not_deferrable = !context.is_deferrable();
        let LockEntryContext { store, keys, slot, .. } = context;
        // Of several locks, the one that the idempotency record is stored beside, if there is one.
        let first_key = keys.into_iter().min_by(LockSet::compare_keys);
        let Some(key) = first_key else { return Verdict::Answer(Reply::misconfigured()) };
        tracing::debug!(
            node = %store.node(), lock = %store.log_name(&key), queue_length = busy.queue_length, "request refused: the lock is busy"
        );
        if let Some(replay) = replay {
            replay.record_busy_status(status);
        }
        let reply = self.busy_reply(status, busy);
        // Only a request of one exclusive lock can be deferred. A duplicate is parked in any case,
        // because the outer layer answers it.
        let slot = slot.filter(|_| is_recorded || !is_not_deferrable);
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
            let typical_hold = self.average_hold_time.estimate(self.policy.expected_hold);
            slot.set_parking(BusyLockContext {
                store,
                key,
                busy_status: reply.status,
                typical_hold,
                is_recorded,
                is_not_deferrable,
            });
        }
        Verdict::Busy(reply, slot)
    }

    fn busy_reply(&self, status: u16, busy: &LockBusy) -> Reply {
        let retry_after = self.average_hold_time.retry_after(busy, self.policy.expected_hold);
        let reply =
            Reply::problem(status, problem::BUSY, "The resource is busy").retry_after(retry_after);
        let Some(waited) = busy.waited else { return reply };
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        reply.with_member("waited_ms", waited_ms)
    }

    /// Verdict for a request while the store is unavailable: passes without its lock or is refused,
    /// as the policy says.
    pub(super) fn outage_verdict(
        &self,
        mut context: LockEntryContext,
        error: &crate::Error,
    ) -> Verdict<LockTicket> {
        crate::throttle::throttled!(
            error,
            node = %context.store.node(), %error, policy = ?self.policy.outage, "no lock: the store is unavailable"
        );
        if self.policy.outage.admits(error) {
            let outer = context.take_held_locks();
            let admitted =
                AdmittedRequestLocks::admitted(&context.store, context.keys, context.mode, &outer);
            return Verdict::Pass(LockTicket::new(admitted, outer));
        }
        // Not parked for an outer layer, although a busy response may have the same status.
        let reply = Reply::store_unavailable();
        self.record_refusal(&context, reply.status);
        if let Some(replay) = context.replay() {
            // A run that could not start is not charged.
            replay.record_busy_status(reply.status);
        }
        Verdict::Answer(reply)
    }
}
