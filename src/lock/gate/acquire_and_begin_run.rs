//! Acquire of a request's locks, and the start of its direct run: the check and creation of its
//! idempotency record.

use std::{sync::Arc, time::Duration};

use super::{
    LockLayer,
    gate_impl::clear_slot,
    lock_entry_context::LockEntryContext,
    lock_ticket::{AdmittedRequestLocks, LockTicket},
};
use crate::{
    error::Error,
    gate::{
        BeginOutcome, DirectRunTerms, IdempotentRun, LockInstruction, ParkingSlot, RequestKind,
        RunLimits, Verdict,
    },
    lock::{
        local_wait_queue::LocalQueues,
        lock_guard::LockGuard,
        lock_outcome::{AcquireError, LockBusy, LockOutcome},
        lock_set::LockSet,
        lock_set_request::LockSetRequest,
    },
    reply::Reply,
    store::{DirectRunCommand, JobId, Store},
};

/// Longest time for which a direct run continues without its client, if `max_hold` is unlimited.
const MAX_RUN_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Reason not to run a request that has its locks.
enum DirectRunRefusal {
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
        context: &LockEntryContext,
    ) -> Result<LockOutcome<LockSet>, AcquireError> {
        let LockEntryContext { store, keys, mode, slot, .. } = context;
        let wait_override = wait_override(context);
        let request = self.policy.lock_request(store, &keys[0], *mode, wait_override);
        // A retry layer in between may call again: the record belongs to this request then.
        let slot = slot.as_ref().filter(|slot| slot.idempotency().is_some() && !slot.has_run());
        if keys.len() > 1 {
            let set_request = LockSetRequest::new(keys.clone(), request);
            let held_locks = context.held_locks().cloned().unwrap_or_default();
            let set = Box::pin(set_request.acquire_within(&held_locks)).await?;
            return Box::pin(self.begin_run_or_release(store, slot, set)).await;
        }
        let record = slot.and_then(ParkingSlot::idempotency).map(|record| &record.record_name);
        // The future of a request is moved often, so it has room for one call only, which is all
        // that most requests need. The others are boxed.
        let outcome = if request.is_single_call() {
            request.try_acquire(record).await?
        } else {
            Box::pin(request.acquire_with_record(record.cloned())).await?
        };
        match outcome {
            LockOutcome::Granted(guard) if slot.is_some_and(ParkingSlot::records_direct_runs) => {
                Box::pin(self.begin_run_or_release(store, slot, LockSet::from_guard(guard))).await
            }
            outcome => Ok(outcome.map_granted(LockSet::from_guard)),
        }
    }

    /// Returns the longest time that a request waits in the wait queue, if it does.
    pub(super) fn max_wait(&self, context: &LockEntryContext) -> Option<Duration> {
        self.policy.max_wait(wait_override(context))
    }

    /// Returns the granted locks if the request is to run. Otherwise releases them before the
    /// response, because its client may ask for one of them at once.
    async fn begin_run_or_release(
        &self,
        store: &Store,
        slot: Option<&ParkingSlot>,
        set: LockSet,
    ) -> Result<LockOutcome<LockSet>, AcquireError> {
        let Some(refusal) = self.begin_direct_run(store, slot, set.first()).await? else {
            return Ok(LockOutcome::Granted(set));
        };
        set.release().await;
        Ok(match refusal {
            DirectRunRefusal::RecordExists => LockOutcome::RecordExists,
            DirectRunRefusal::Busy(busy) => LockOutcome::Busy(busy),
            DirectRunRefusal::TooManyKeys(remaining) => LockOutcome::TooManyKeys(remaining),
        })
    }

    /// Passes with locks that the request holds already, unless its idempotency record exists: the
    /// request may have been accepted while the present lender did not hold them.
    pub(super) async fn enter_reentrant(
        &self,
        mut context: LockEntryContext,
        reentrant_locks: AdmittedRequestLocks,
    ) -> Verdict<LockTicket> {
        clear_slot(context.slot.as_ref());
        if let Err(error) = self.await_replicas(&context.store, &reentrant_locks).await {
            return self.outage_verdict(context, &error);
        }
        match self.find_run_refusal(&context, &reentrant_locks).await {
            Ok(Some(DirectRunRefusal::RecordExists)) => return self.duplicate_verdict(context),
            Ok(Some(DirectRunRefusal::Busy(busy))) => {
                return self.busy_verdict(context, &busy, false);
            }
            Ok(Some(DirectRunRefusal::TooManyKeys(remaining))) => {
                return Verdict::Answer(Reply::too_many_idempotency_keys(remaining));
            }
            Ok(None) => {}
            // The request holds the lock, so a policy that admits requests without one admits it
            // too.
            Err(error) if !self.policy.outage.admits(&error) => {
                return self.outage_verdict(context, &error);
            }
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    %error, "idempotency key not looked up: the store is unavailable"
                );
            }
        }
        let ticket = LockTicket::new(reentrant_locks, context.take_held_locks());
        Verdict::Pass(ticket.with_slot(context.slot))
    }

    /// Waits until the grants of these locks are on as many replicas as this layer requires.
    async fn await_replicas(
        &self,
        store: &Store,
        reentrant_locks: &AdmittedRequestLocks,
    ) -> Result<(), Error> {
        let min_replicas = self.policy.acquire_options.replicas;
        if min_replicas == 0 {
            return Ok(());
        }
        if let AdmittedRequestLocks::Reentrant { held_locks, .. }
        | AdmittedRequestLocks::Scoped { held_locks, .. }
        | AdmittedRequestLocks::JobRun { held_locks, .. } = reentrant_locks
        {
            for held_lock in held_locks {
                held_lock.await_replicas(store, min_replicas).await?;
            }
        }
        Ok(())
    }

    /// Checks the idempotency record of a request under these locks. Returns the reason if it is
    /// not to run.
    #[expect(clippy::indexing_slicing, reason = "a key source returns at least one key")]
    async fn find_run_refusal(
        &self,
        context: &LockEntryContext,
        reentrant_locks: &AdmittedRequestLocks,
    ) -> Result<Option<DirectRunRefusal>, Error> {
        let LockEntryContext { store, keys, mode, slot, .. } = context;
        let slot = slot.as_ref().filter(|slot| !slot.has_run());
        let Some((slot, record)) = slot.and_then(|slot| Some((slot, slot.idempotency()?))) else {
            return Ok(None);
        };
        if context.is_deferrable() {
            let request = self.policy.lock_request(store, &keys[0], *mode, Some(Duration::ZERO));
            // The call looks up the record first. It cannot get the lock, which the lender holds.
            // If the lender has lost it, the grant is released at once.
            let local_queues = store.extension::<LocalQueues>();
            if matches!(
                request.try_acquire_from(&local_queues, Some(&record.record_name)).await?,
                LockOutcome::RecordExists
            ) {
                return Ok(Some(DirectRunRefusal::RecordExists));
            }
        }
        // A lock that is delegated by another service has no token here, so no direct run is
        // recorded.
        let guard = match reentrant_locks {
            // The record is stored beside the lock that is first in this order.
            AdmittedRequestLocks::Reentrant { guards, .. }
            | AdmittedRequestLocks::Scoped { guards, .. } => guards
                .iter()
                .min_by(|first, second| LockSet::compare_keys(first.key(), second.key())),
            _ => None,
        };
        self.begin_direct_run(store, Some(slot), guard).await
    }

    /// Verdict for a request that was accepted before: the outer layer returns its job after it has
    /// read the body.
    pub(super) fn duplicate_verdict(&self, context: LockEntryContext) -> Verdict<LockTicket> {
        let busy =
            LockBusy { lease_remaining: Duration::from_secs(1), queue_length: 0, waited: None };
        self.busy_verdict(context, &busy, true)
    }

    /// Starts the direct run of the request under a held lock. Returns the reason if it is not to
    /// run.
    async fn begin_direct_run(
        &self,
        store: &Store,
        slot: Option<&ParkingSlot>,
        guard: Option<&LockGuard>,
    ) -> Result<Option<DirectRunRefusal>, Error> {
        let Some((slot, guard)) = slot.zip(guard) else { return Ok(None) };
        let Some((command, limits)) = self.direct_run_command(slot, guard) else { return Ok(None) };
        match Box::pin(IdempotentRun::begin(store, command, limits)).await? {
            BeginOutcome::Started(run) => {
                slot.set_run(run);
                Ok(None)
            }
            // Taken by another request, at the same time, or before it if the locks were acquired
            // without a lookup.
            BeginOutcome::Taken => Ok(Some(DirectRunRefusal::RecordExists)),
            BeginOutcome::TooManyKeys(remaining) => {
                Ok(Some(DirectRunRefusal::TooManyKeys(remaining)))
            }
            BeginOutcome::LockLost | BeginOutcome::AtCapacity => {
                Ok(Some(DirectRunRefusal::Busy(LockBusy {
                    lease_remaining: Duration::from_secs(1),
                    queue_length: 0,
                    waited: None,
                })))
            }
        }
    }

    /// Creates the record of a direct run. It outlives the lock and the process: a run that is not
    /// renewed within the lease has crashed.
    fn direct_run_command(
        &self,
        slot: &ParkingSlot,
        guard: &LockGuard,
    ) -> Option<(DirectRunCommand, RunLimits)> {
        let record = slot.idempotency().filter(|_| !slot.has_run())?;
        let DirectRunTerms { owner, retention, is_repeatable, max_runs, retention_caps, .. } =
            record.direct_terms.as_ref()?;
        let (terms, key, lease) = (&self.policy.acquire_options.terms, guard.key(), guard.lease()?);
        let max_run_time = terms.max_hold.saturating_add(terms.lease).min(MAX_RUN_TIME);
        let command = DirectRunCommand {
            key: key.clone(),
            token: lease.token.clone(),
            mode: lease.terms.mode,
            record_name: Arc::clone(&record.record_name),
            id: JobId::new(key),
            owner: owner.clone(),
            retention: *retention,
            lease: terms.lease,
            retry_after_crash: *is_repeatable,
            limits: *retention_caps,
            fingerprint: None,
        };
        Some((command, RunLimits { max_runs: *max_runs, max_detached_time: max_run_time }))
    }
}

/// Returns the wait that an outer layer sets, which accepts the request afterwards.
fn wait_override(context: &LockEntryContext) -> Option<Duration> {
    // A request that cannot be deferred waits as set for the lock.
    let slot = context.slot.as_ref().filter(|_| context.is_deferrable())?;
    Some(match slot.instruction() {
        LockInstruction::WaitFor(wait) => wait,
        LockInstruction::ParkImmediately | LockInstruction::ParkOrRefuse => Duration::ZERO,
    })
}
