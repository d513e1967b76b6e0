//! `OwnedHold`: use of a lease by one guard, and its release.
//!
//! A hold releases its lock when it is dropped. Dropping never waits, needs no runtime and cannot
//! fail: it hands an undo to the lease agent.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    Store,
    backend::{AcquireCommand, AcquireReply, JobId, LockMode, ReleaseOutcome},
    grant_attempt::GrantAttempt,
    hold_state::HoldState,
    lease_agent::{ReleaseOutcomeSender, UndoAction, UndoRequest},
    lock_lease::{LeaseTerms, LockLease, LossWatcher, lease_for_validity},
};
use crate::{
    error::Error,
    instruments::{HandoverVia, record_handover, record_lock_release},
};

/// Hold on a lease. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct OwnedHold {
    store: Store,
    state: Arc<HoldState>,
    /// Nothing is left to release.
    is_released: bool,
}

impl OwnedHold {
    pub(super) fn new(store: &Store, lease: Arc<LockLease>, fence: u64) -> Self {
        let state = HoldState::new(lease, fence);
        state.lease.begin_hold(&state);
        state.lease.set_log_names(store.shows_log_names());
        state.lease.set_counters(store.counters());
        store.agent().track_lease(&state.lease);
        store.ensure_listening();
        let lock = store.log_name(state.key());
        tracing::debug!(node = %store.node(), %lock, fence, "lock granted");
        Self { store: store.clone(), state, is_released: false }
    }

    /// Hands the lease over to the next hold, with the next fence. Returns `Err` with this hold if
    /// the lease was lost or released, or has reached its end.
    pub(crate) fn hand_over(mut self, fence: u64) -> Result<Self, Self> {
        let next_state = HoldState::new(Arc::clone(&self.state.lease), fence);
        if !self.state.lease.begin_next_hold(&next_state) {
            return Err(self);
        }
        self.is_released = true;
        self.record_end();
        record_handover(self.state.key().without_value(), HandoverVia::Memory);
        // Closed after the next hold has begun, so that a loss in between is reported to that one.
        self.state.close();
        if self.state.mark_received() {
            // The grant was never received, so the lease was not renewed.
            self.store.agent().track_lease(&next_state.lease);
        }
        Ok(Self { store: self.store.clone(), state: next_state, is_released: false })
    }

    /// Marks the grant as received and resumes its renewal. Returns false if the hold was lost
    /// meanwhile.
    pub(crate) fn mark_received(&self) -> bool {
        if self.state.mark_received() {
            self.store.agent().track_lease(&self.state.lease);
            return self.state.loss().is_none();
        }
        self.state.reported_loss().is_none()
    }

    /// Replaces the end of the hold, which was set when the hold was restarted.
    fn replace_end(&mut self, ends_at: Instant) {
        let lease = Arc::clone(&self.state.lease);
        let state = HoldState::with_end(Arc::clone(&lease), self.state.fence, ends_at);
        // A lost lease has reported its loss to the old state.
        if lease.begin_hold(&state) {
            self.state = state;
        }
    }

    pub(crate) fn state(&self) -> &Arc<HoldState> {
        &self.state
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn lease(&self) -> &Arc<LockLease> {
        &self.state.lease
    }

    /// Sets a watcher that is notified if the lease is lost.
    pub(crate) fn set_loss_watcher(&self, watcher: std::sync::Weak<dyn LossWatcher>) {
        self.lease().set_loss_watcher(watcher);
    }

    /// Releases the lock and returns the outcome.
    ///
    /// If this future is dropped, the agent releases the lock. A lost hold is released all the
    /// same: the store decides if there is anything to release.
    pub(crate) async fn release(mut self) -> Result<ReleaseOutcome, Error> {
        let lease = Arc::clone(self.lease());
        let (key, token, mode) = (lease.key.clone(), lease.token.clone(), lease.terms.mode);
        // Closed before the call: a renewal that the release overtakes is refused, and that is no
        // loss.
        self.close();
        let outcome = self.store.backend().release(key, token, mode).await?;
        self.mark_released(outcome);
        Ok(outcome)
    }

    /// Extends the lease to last `lease` from now, at most to the end of the hold. Returns false if
    /// it is lost.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let lease = lease.min(self.state.ends_at.saturating_duration_since(Instant::now()));
        self.store.agent().extend(self.lease(), lease).await
    }

    /// Downgrades the hold to a shared one. Returns `None` if it was lost. If this future is
    /// dropped, the lock is released.
    pub(crate) async fn downgrade(mut self) -> Result<Option<Self>, Error> {
        let lease = Arc::clone(self.lease());
        // A loss is final, even if the store still has the lease.
        let is_lost = self.state.loss().is_some();
        if !self.close() || is_lost {
            return Ok(None);
        }
        // Until the reply, the store may have either mode. Hold and attempt each have their undo.
        let terms = LeaseTerms { mode: LockMode::Shared, ..lease.terms.clone() };
        let mut attempt = GrantAttempt::for_lease(&self.store, &lease, LockMode::Shared);
        let now = Instant::now();
        let remaining = |end: Instant| end.saturating_duration_since(now);
        // The end of the hold does not change, and a downgrade does not prolong a fixed lease.
        let renewed_lease = if terms.renews { terms.lease } else { Duration::ZERO };
        let requested_lease = renewed_lease
            .min(remaining(self.state.ends_at))
            .max(lease_for_validity(remaining(lease.valid_until())));
        let backend = self.store.backend();
        let call = || backend.downgrade(lease.key.clone(), lease.token.clone(), requested_lease);
        let was_downgraded = attempt.send(requested_lease, call).await?;
        self.close_without_release();
        if was_downgraded {
            // An extension of the lease is kept, too.
            let mut hold =
                attempt.accept_grant_until(self.state.fence, terms, attempt.valid_until())?;
            hold.replace_end(self.state.ends_at);
            Ok(Some(hold))
        } else {
            attempt.mark_refused();
            self.state.report_loss_on_release();
            Ok(None)
        }
    }

    /// Releases the lock and acquires it for the next waiter of this process, in one call.
    pub(crate) async fn release_and_reacquire(
        mut self,
        next: AcquireCommand,
    ) -> Result<(ReleaseOutcome, AcquireReply), Error> {
        let lease = Arc::clone(self.lease());
        self.close();
        let call =
            self.store.backend().release_and_reacquire(lease.token.clone(), lease.terms.mode, next);
        let (outcome, reply) = call.await?;
        if matches!(reply, AcquireReply::Granted { .. }) {
            record_handover(lease.key.without_value(), HandoverVia::Store);
        }
        self.mark_released(outcome);
        Ok((outcome, reply))
    }

    /// Closes the hold after the run of its job was settled.
    ///
    /// Late copies of the claim are undone. The store refuses them until the job has another run or
    /// returns to the queue. After that the token is unknown, and a copy would start a run that no
    /// worker executes.
    pub(crate) fn mark_run_settled(&mut self, job: JobId) {
        self.close_without_release();
        self.undo_late_calls(UndoAction::Unclaim(Some(job)));
    }

    fn undo_late_calls(&self, undo: UndoAction) {
        if let Some(watch_until) = self.lease().late_calls.as_ref().map(|calls| calls.watch_until) {
            let now = Instant::now();
            if watch_until > now {
                self.schedule_undo(undo, 0, now, None);
            }
        }
    }

    /// Marked only now: until the reply, `Drop` has to release the lock.
    fn mark_released(&mut self, outcome: ReleaseOutcome) {
        self.close_without_release();
        self.undo_late_calls(UndoAction::Release);
        tracing::debug!(
            node = %self.store.node(), lock = %self.store.log_name(self.state.key()), ?outcome,
            held_ms = self.state.held_since.elapsed().as_millis(), "lock released"
        );
    }

    /// Closes the hold without a release: another operation has released the lock, or the store has
    /// lost it.
    pub(crate) fn close_without_release(&mut self) {
        if !std::mem::replace(&mut self.is_released, true) {
            self.record_end();
        }
        self.close();
    }

    /// Records how long this hold has lasted.
    fn record_end(&self) {
        record_lock_release(self.state.key().without_value(), self.state.held_since.elapsed());
    }

    /// Stops the renewal. Returns false if the lease was closed before.
    fn close(&self) -> bool {
        self.state.close();
        let was_open = self.state.lease.close();
        self.store.agent().untrack_lease(&self.state.lease);
        was_open
    }
}

impl OwnedHold {
    /// Releases the lock as a drop does, and returns a receiver for the outcome of the first call.
    /// It receives nothing if no runtime can send the call.
    pub(crate) fn send_release(mut self) -> oneshot::Receiver<Result<ReleaseOutcome, Error>> {
        let (tx, rx) = oneshot::channel();
        self.start_release(Some(tx));
        rx
    }

    fn start_release(&mut self, reply_to: Option<ReleaseOutcomeSender>) {
        if !std::mem::replace(&mut self.is_released, true) {
            self.record_end();
            self.close();
            let lease = self.lease();
            self.schedule_undo(
                UndoAction::Release,
                1,
                lease.valid_until() + lease.terms.lease / 8,
                reply_to,
            );
        }
    }

    /// Schedules the undo of the lease, unless `grant_count` is 0, and of the calls that may arrive
    /// after it.
    fn schedule_undo(
        &self,
        undo: UndoAction,
        grant_count: u32,
        grant_expires_at: Instant,
        reply_to: Option<ReleaseOutcomeSender>,
    ) {
        let lease = self.lease();
        // A copy of a claim acquires nothing: it is the same claim while its run lasts, and is
        // refused afterwards.
        let is_claim_release = lease.terms.job.is_some() && matches!(undo, UndoAction::Release);
        let late_calls = lease.late_calls.as_deref().filter(|_| !is_claim_release);
        let late_count = late_calls.map_or(0, |late_calls| late_calls.count);
        self.store.agent().schedule_undo(UndoRequest {
            key: lease.key.clone(),
            token: lease.token.clone(),
            // Late calls request the mode from before a downgrade, and a release in that mode finds
            // both modes.
            mode: late_calls.map_or(lease.terms.mode, |late_calls| late_calls.mode),
            action: undo,
            expires_at: late_calls
                .map_or(grant_expires_at, |calls| calls.watch_until.max(grant_expires_at)),
            possible_grants: late_count + grant_count,
            may_arrive_late: late_count > 0,
            resets_when_sent: None,
            blocks_shutdown: grant_count > 0,
            reply_to,
        });
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if !self.is_released && self.state.expires_on_drop() {
            self.close_without_release();
        }
        self.start_release(None);
    }
}
