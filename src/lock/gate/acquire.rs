//! Acquisition of a request's locks, with the check of its idempotency record.

use std::{sync::Arc, time::Duration};

use super::{LockLayer, gate_impl::clear_slot};
use crate::{
    error::Error,
    gate::{
        AttemptMode, BeginOutcome, DirectRunTerms, IdempotentRun, ParkingSlot, RequestKind,
        RunLimits, Verdict,
    },
    lock::{
        guard::LockGuard,
        lock_entry_context::LockEntryContext,
        lock_set::{LockSet, LockSetRequest},
        lock_ticket::{LockTicket, LockTicketKind},
        outcome::{AcquireError, LockBusy, LockOutcome},
        wait_queue::LocalQueues,
    },
    reply::Reply,
    store::{DirectRunCommand, JobId, Store},
};

/// Longest time for which a direct run continues without its client, if `max_hold` is unlimited.
const MAX_RUN_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Reason not to run a request that has its locks.
enum SkipReason {
    /// A record with its idempotency key exists.
    RecordExists,
    /// The locks were lost before the run was recorded, or no further run is admitted.
    Busy(LockBusy),
    /// The owner has reached the limit of idempotency keys, for this long.
    TooManyKeys(Duration),
}

impl<R: RequestKind> LockLayer<R> {
    #[expect(clippy::indexing_slicing, reason = "a key source returns at least one key")]
    pub(super) async fn acquire_locks(
        &self,
        facts: &LockEntryContext,
    ) -> Result<LockOutcome<LockSet>, AcquireError> {
        let LockEntryContext { store, keys, mode, slot, .. } = facts;
        // A request that cannot be deferred waits as set for the lock.
        let deferring = slot.as_ref().filter(|_| facts.is_deferrable());
        let waits = deferring.map(|slot| match slot.mode() {
            AttemptMode::WaitFor(wait) => wait,
            AttemptMode::ParkImmediately | AttemptMode::ParkOrRefuse => Duration::ZERO,
        });
        let request = self.policy.lock_request(store, &keys[0], *mode, waits);
        // A retry layer in between may call again: the record belongs to this request then.
        let slot = slot.as_ref().filter(|slot| slot.idempotency().is_some() && !slot.has_run());
        if keys.len() > 1 {
            let several = LockSetRequest::new(keys.clone(), request);
            let held = facts.held_locks().cloned().unwrap_or_default();
            let set = Box::pin(several.acquire_within(&held)).await?;
            return Box::pin(self.begin_run_or_release(store, slot, set)).await;
        }
        let record = slot.and_then(ParkingSlot::idempotency).map(|record| &record.record_name);
        // The future of a request is moved often, so it has room for one call only, which is all
        // that most requests need. The others are boxed.
        let answer = if request.is_single_call() {
            request.try_acquire(record).await?
        } else {
            Box::pin(request.acquire_with_record(record.cloned())).await?
        };
        match answer {
            LockOutcome::Granted(guard) if slot.is_some_and(ParkingSlot::records_direct_runs) => {
                Box::pin(self.begin_run_or_release(store, slot, LockSet::from_guard(guard))).await
            }
            answer => Ok(answer.map_granted(LockSet::from_guard)),
        }
    }

    /// Returns the granted locks if the request is to run. Otherwise releases them before the
    /// response, because its client may ask for one of them at once.
    async fn begin_run_or_release(
        &self,
        store: &Store,
        slot: Option<&ParkingSlot>,
        set: LockSet,
    ) -> Result<LockOutcome<LockSet>, AcquireError> {
        let Some(instead) = self.begin_direct_run(store, slot, set.first()).await? else {
            return Ok(LockOutcome::Granted(set));
        };
        set.release().await;
        Ok(match instead {
            SkipReason::RecordExists => LockOutcome::RecordExists,
            SkipReason::Busy(busy) => LockOutcome::Busy(busy),
            SkipReason::TooManyKeys(left) => LockOutcome::TooManyKeys(left),
        })
    }

    /// Passes with locks that the request holds already, unless its idempotency record exists: the
    /// request may have been accepted while the present lender did not hold them.
    pub(super) async fn enter_reentrant(
        &self,
        mut facts: LockEntryContext,
        lent: LockTicketKind,
    ) -> Verdict<LockTicket> {
        clear_slot(facts.slot.as_ref());
        if let Err(error) = self.await_replicas(&facts.store, &lent).await {
            return self.outage_verdict(facts, &error);
        }
        match self.find_skip_reason(&facts, &lent).await {
            Ok(Some(SkipReason::RecordExists)) => return self.duplicate_verdict(facts),
            Ok(Some(SkipReason::Busy(busy))) => return self.busy_verdict(facts, &busy, false),
            Ok(Some(SkipReason::TooManyKeys(left))) => {
                return Verdict::Answer(Reply::too_many_idempotency_keys(left));
            }
            Ok(None) => {}
            // The request holds the lock, so a policy that admits requests without one admits it
            // too.
            Err(error) if !self.policy.outage.admits(&error) => {
                return self.outage_verdict(facts, &error);
            }
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    %error, "idempotency key not looked up: the store is unavailable"
                );
            }
        }
        let ticket = LockTicket::new(lent, facts.take_held_locks());
        Verdict::Pass(ticket.with_slot(facts.slot))
    }

    /// Waits until the grants of these locks are on as many replicas as this layer requires.
    async fn await_replicas(&self, store: &Store, lent: &LockTicketKind) -> Result<(), Error> {
        let wanted = self.policy.acquire_options.replicas;
        if wanted == 0 {
            return Ok(());
        }
        if let LockTicketKind::Reentrant { held_locks: held, .. }
        | LockTicketKind::Scoped { held_locks: held, .. }
        | LockTicketKind::JobRun(held, _) = lent
        {
            for held in held {
                held.await_replicas(store, wanted).await?;
            }
        }
        Ok(())
    }

    /// Checks the idempotency record of a request under these locks. Returns the reason if it is
    /// not to run.
    #[expect(clippy::indexing_slicing, reason = "a key source returns at least one key")]
    async fn find_skip_reason(
        &self,
        facts: &LockEntryContext,
        lent: &LockTicketKind,
    ) -> Result<Option<SkipReason>, Error> {
        let LockEntryContext { store, keys, mode, slot, .. } = facts;
        let slot = slot.as_ref().filter(|slot| !slot.has_run());
        let Some((slot, record)) = slot.and_then(|slot| Some((slot, slot.idempotency()?))) else {
            return Ok(None);
        };
        if facts.is_deferrable() {
            let request = self.policy.lock_request(store, &keys[0], *mode, Some(Duration::ZERO));
            // The call looks up the record first. It cannot get the lock, which the lender holds.
            // If the lender has lost it, the grant is released at once.
            let lines = store.extension::<LocalQueues>();
            if matches!(
                request.try_acquire_from(&lines, Some(&record.record_name)).await?,
                LockOutcome::RecordExists
            ) {
                return Ok(Some(SkipReason::RecordExists));
            }
        }
        // A lock that is delegated by another service has no token here, so no direct run is
        // recorded.
        let share = match lent {
            // The record is stored beside the lock that is first in this order.
            LockTicketKind::Reentrant { guards: shares, .. }
            | LockTicketKind::Scoped { guards: shares, .. } => {
                shares.iter().min_by(|one, other| LockSet::compare_keys(one.key(), other.key()))
            }
            _ => None,
        };
        self.begin_direct_run(store, Some(slot), share).await
    }

    /// Verdict for a request that was accepted before: the outer layer returns its job after it has
    /// read the body.
    pub(super) fn duplicate_verdict(&self, facts: LockEntryContext) -> Verdict<LockTicket> {
        let busy =
            LockBusy { lease_remaining: Duration::from_secs(1), queue_length: 0, waited: None };
        self.busy_verdict(facts, &busy, true)
    }

    /// Starts the direct run of the request under a held lock. Returns the reason if it is not to
    /// run.
    async fn begin_direct_run(
        &self,
        store: &Store,
        slot: Option<&ParkingSlot>,
        guard: Option<&LockGuard>,
    ) -> Result<Option<SkipReason>, Error> {
        let Some((slot, guard)) = slot.zip(guard) else { return Ok(None) };
        let Some((call, limits)) = self.direct_run_call(slot, guard) else { return Ok(None) };
        match Box::pin(IdempotentRun::begin(store, call, limits)).await? {
            BeginOutcome::Started(begun) => {
                slot.set_run(begun);
                Ok(None)
            }
            // Taken by another request, at the same time, or before it if the locks were acquired
            // without a lookup.
            BeginOutcome::Taken => Ok(Some(SkipReason::RecordExists)),
            BeginOutcome::TooManyKeys(left) => Ok(Some(SkipReason::TooManyKeys(left))),
            BeginOutcome::LockLost | BeginOutcome::AtCapacity => {
                let left = Duration::from_secs(1);
                Ok(Some(SkipReason::Busy(LockBusy {
                    lease_remaining: left,
                    queue_length: 0,
                    waited: None,
                })))
            }
        }
    }

    /// Creates the record of a direct run. It outlives the lock and the process: a run that is not
    /// renewed within the lease has crashed.
    fn direct_run_call(
        &self,
        slot: &ParkingSlot,
        guard: &LockGuard,
    ) -> Option<(DirectRunCommand, RunLimits)> {
        let record = slot.idempotency().filter(|_| !slot.has_run())?;
        let DirectRunTerms {
            owner,
            retention: life,
            is_repeatable: again,
            max_runs: runs,
            retention_caps: caps,
            ..
        } = record.direct_terms.as_ref()?;
        let (terms, key, lease) = (&self.policy.acquire_options.terms, guard.key(), guard.lease()?);
        let time = terms.max_hold.saturating_add(terms.lease).min(MAX_RUN_TIME);
        let call = DirectRunCommand {
            key: key.clone(),
            token: lease.token.clone(),
            mode: lease.terms.mode,
            record_name: Arc::clone(&record.record_name),
            id: JobId::new(key),
            owner: owner.clone(),
            retention: *life,
            lease: terms.lease,
            retry_after_crash: *again,
            limits: *caps,
            fingerprint: None,
        };
        Some((call, RunLimits { max_runs: *runs, max_detached_time: time }))
    }
}
