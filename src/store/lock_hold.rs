//! A hold: the turn of one guard on a lease, and what gives the lease back.
//!
//! A [`LockHold`] is given back when it is dropped. Dropping never waits, needs no runtime and can't fail:
//! it puts one message into the agent's mailbox.

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
use crate::error::Error;

/// The turn on a lease that is held, and given back when dropped.
#[derive(Debug)]
pub(crate) struct LockHold {
    store: Store,
    state: Arc<HoldState>,
    /// Nothing is left to give back.
    is_released: bool,
}

impl LockHold {
    pub(super) fn new(store: &Store, lease: Arc<LockLease>, fence: u64) -> Self {
        let facts = HoldState::new(lease, fence);
        facts.lease.begin_hold(&facts);
        store.agent().track_lease(&facts.lease);
        let lock = facts.key().log_hash();
        tracing::debug!(node = %store.node(), %lock, fence, "lock granted");
        Self { store: store.clone(), state: facts, is_released: false }
    }

    /// The lease passes on to the next turn, with the next fence; `Err` if it was lost or given back, or has come to its end.
    pub(crate) fn hand_over(mut self, fence: u64) -> Result<Self, Self> {
        let next = HoldState::new(Arc::clone(&self.state.lease), fence);
        if !self.state.lease.begin_next_hold(&next) {
            return Err(self);
        }
        self.is_released = true;
        // After the next turn has begun: a loss in between is told to that one.
        self.state.close();
        if self.state.mark_received() {
            // Nobody came for the turn before, so the lease was not renewed.
            self.store.agent().track_lease(&next.lease);
        }
        Ok(Self { store: self.store.clone(), state: next, is_released: false })
    }

    /// Whoever has waited for it has it, from now on it is renewed; false if it has ended meanwhile.
    pub(crate) fn mark_received(&self) -> bool {
        if self.state.mark_received() {
            self.store.agent().track_lease(&self.state.lease);
            return self.state.loss().is_none();
        }
        self.state.reported_loss().is_none()
    }

    /// The turn ends then, and not later because it was begun anew.
    fn replace_end(&mut self, end: Instant) {
        let lease = Arc::clone(&self.state.lease);
        let facts = HoldState::with_end(Arc::clone(&lease), self.state.fence, end);
        // If it is lost already, whoever has it is told by the old facts.
        if lease.begin_hold(&facts) {
            self.state = facts;
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

    /// Tells this one too if the lease is lost.
    pub(crate) fn set_loss_watcher(&self, watcher: std::sync::Weak<dyn LossWatcher>) {
        self.lease().set_loss_watcher(watcher);
    }

    /// Gives it back now and says how that went.
    ///
    /// If this future is dropped, the agent gives it back. A lost hold is given back all the same: the
    /// store decides whether there is something to give.
    pub(crate) async fn release(mut self) -> Result<ReleaseOutcome, Error> {
        let lease = Arc::clone(self.lease());
        let (key, me, mode) = (lease.key.clone(), lease.token.clone(), lease.terms.mode);
        // Before the call: a renewal that it overtakes would be told "not yours", and that is no loss.
        self.close();
        let outcome = self.store.backend().release(key, me, mode).await?;
        self.mark_released(outcome);
        Ok(outcome)
    }

    /// Makes the lease last for so long from now; false if it is lost.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let lease = lease.min(self.state.ends_at.saturating_duration_since(Instant::now()));
        self.store.agent().extend(self.lease(), lease).await
    }

    /// The same hold, shared; `None` if it was lost. If this future is dropped, it is given back.
    pub(crate) async fn downgrade(mut self) -> Result<Option<Self>, Error> {
        let lease = Arc::clone(self.lease());
        // Loss is terminal, whatever the store has still.
        let lost = self.state.loss().is_some();
        if !self.close() || lost {
            return Ok(None);
        }
        // Either may be in the store until there is an answer: both have their undo.
        let terms = LeaseTerms { mode: LockMode::Shared, ..lease.terms.clone() };
        let mut attempt = GrantAttempt::for_lease(&self.store, &lease, LockMode::Shared);
        let now = Instant::now();
        let left = |end: Instant| end.saturating_duration_since(now);
        // It is the same turn: what ends it stays. A fixed lease gets no longer by it.
        let more = if terms.renews { terms.lease } else { Duration::ZERO };
        let time =
            more.min(left(self.state.ends_at)).max(lease_for_validity(left(lease.valid_until())));
        let backend = self.store.backend();
        let call = || backend.downgrade(lease.key.clone(), lease.token.clone(), time);
        let stands = attempt.send(time, call).await?;
        self.close_without_release();
        if stands {
            // What it was extended to, too.
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

    /// Gives it back, and asks for the next of this process, in one call.
    pub(crate) async fn release_and_reacquire(
        mut self,
        next: AcquireCommand,
    ) -> Result<(ReleaseOutcome, AcquireReply), Error> {
        let lease = Arc::clone(self.lease());
        self.close();
        let call =
            self.store.backend().release_and_reacquire(lease.token.clone(), lease.terms.mode, next);
        let (outcome, answer) = call.await?;
        self.mark_released(outcome);
        Ok((outcome, answer))
    }

    /// The run of this job, which had it, was settled. A copy of its claim is refused as long as the job has had no other run,
    /// and was not put back; after that nobody knows the token any more, and it would begin a run that nobody executes.
    pub(crate) fn mark_run_settled(&mut self, job: JobId) {
        self.close_without_release();
        self.undo_late_calls(UndoAction::Unclaim(Some(job)));
    }

    fn undo_late_calls(&self, undo: UndoAction) {
        if let Some(until) = self.lease().late_calls.as_ref().map(|strays| strays.watch_until) {
            let now = Instant::now();
            if until > now {
                self.schedule_undo(undo, 0, now, None);
            }
        }
    }

    /// Only now: until here `Drop` had to see to it.
    fn mark_released(&mut self, outcome: ReleaseOutcome) {
        self.close_without_release();
        self.undo_late_calls(UndoAction::Release);
        tracing::debug!(
            node = %self.store.node(), lock = %self.state.key().log_hash(), ?outcome,
            held_ms = self.state.held_since.elapsed().as_millis(), "lock released"
        );
    }

    /// Ends the hold without giving it back: another step has done so, or the store has it no more.
    pub(crate) fn close_without_release(&mut self) {
        self.is_released = true;
        self.close();
    }

    /// Nobody renews it any more. False if it had ended before.
    fn close(&self) -> bool {
        self.state.close();
        let ends = self.state.lease.close();
        self.store.agent().untrack_lease(&self.state.lease);
        ends
    }
}

impl LockHold {
    /// As dropping it, and somebody is told what the first call came to. Nothing is told where there is no
    /// runtime that would send it.
    pub(crate) fn send_release(mut self) -> oneshot::Receiver<Result<ReleaseOutcome, Error>> {
        let (tell, told) = oneshot::channel();
        self.start_release(Some(tell));
        told
    }

    fn start_release(&mut self, tell: Option<ReleaseOutcomeSender>) {
        if !std::mem::replace(&mut self.is_released, true) {
            self.close();
            let lease = self.lease();
            self.schedule_undo(
                UndoAction::Release,
                1,
                lease.valid_until() + lease.terms.lease / 8,
                tell,
            );
        }
    }

    /// Of what it has in the store, if it has it still, and of what may come behind that.
    fn schedule_undo(
        &self,
        undo: UndoAction,
        has: u32,
        until: Instant,
        tell: Option<ReleaseOutcomeSender>,
    ) {
        let lease = self.lease();
        // A copy of a claim is no acquisition: while its job has this run it is the same claim, and refused after that.
        let strays = lease.late_calls.as_deref();
        let strays =
            strays.filter(|_| lease.terms.job.is_none() || !matches!(undo, UndoAction::Release));
        let number = strays.map_or(0, |strays| strays.count);
        self.store.agent().schedule_undo(UndoRequest {
            key: lease.key.clone(),
            token: lease.token.clone(),
            // They ask in the mode that it had before it was downgraded, whose release finds either.
            mode: strays.map_or(lease.terms.mode, |strays| strays.mode),
            action: undo,
            expires_at: strays.map_or(until, |strays| strays.watch_until.max(until)),
            possible_grants: number + has,
            may_arrive_late: number > 0,
            resets_when_sent: None,
            blocks_shutdown: has > 0,
            reply_to: tell,
        });
    }
}

impl Drop for LockHold {
    fn drop(&mut self) {
        if !self.is_released && self.state.expires_on_drop() {
            self.close_without_release();
        }
        self.start_release(None);
    }
}
