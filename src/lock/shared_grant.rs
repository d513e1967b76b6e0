//! Grant that the guards of one lock share, and its release or handover by the last guard.

use std::{fmt, sync::Arc};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    guard::ReleaseStatus,
    wait_queue::{FenceRange, HandoverOutcome, LocalQueues, QueueTask, QueueTaskStart},
};
use crate::{
    error::Error,
    store::{HoldState, OwnedHold, ReleaseOutcome, Store},
};

/// Grant that one or several guards share.
#[derive(Debug)]
pub(super) struct SharedGrant {
    /// `None` once it has ended.
    active: Option<ActiveGrant>,
}

#[derive(Debug)]
struct ActiveGrant {
    hold: OwnedHold,
    /// `None` if it is always released, even if there are waiters.
    handover: Option<HandoverContext>,
}

/// Data of a handover to the next waiter of this process.
pub(super) struct HandoverContext {
    pub(super) local_queues: Arc<LocalQueues>,
    pub(super) fence_range: FenceRange,
}

impl fmt::Debug for HandoverContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandoverContext")
            .field("fence_range", &self.fence_range)
            .finish_non_exhaustive()
    }
}

impl SharedGrant {
    pub(super) fn new(hold: OwnedHold, turn: Option<HandoverContext>) -> Self {
        Self { active: Some(ActiveGrant { hold, handover: turn }) }
    }

    #[expect(clippy::expect_used, reason = "only a call that consumes the grant takes it out")]
    pub(super) fn hold(&self) -> &OwnedHold {
        &self.active.as_ref().expect("the grant is held until it is consumed").hold
    }

    pub(super) fn hold_state(&self) -> &Arc<HoldState> {
        self.hold().state()
    }

    /// Returns the parts, which are neither handed over nor released when they are dropped.
    #[expect(clippy::expect_used, reason = "only a call that consumes the grant takes it out")]
    pub(super) fn into_parts(mut self) -> (OwnedHold, Option<HandoverContext>) {
        let ActiveGrant { hold, handover: turn } =
            self.active.take().expect("the grant is held until it is consumed");
        (hold, turn)
    }
}

impl Drop for SharedGrant {
    fn drop(&mut self) {
        if let Some(held) = self.active.take() {
            match ReleaseAction::decide(held.hold, held.handover) {
                // The lease agent releases a hold that is dropped.
                ReleaseAction::HandedOver | ReleaseAction::Release(_) => {}
                ReleaseAction::ReleaseAndReacquire(pass) => pass.spawn(None),
            }
        }
    }
}

/// Next step for a hold after its last guard has ended.
pub(super) enum ReleaseAction {
    HandedOver,
    Release(OwnedHold),
    ReleaseAndReacquire(ReleaseAndReacquire),
}

/// Release of a hold, with a reacquire for the next waiter of this process in the same call.
pub(super) struct ReleaseAndReacquire {
    local_queues: Arc<LocalQueues>,
    hold: OwnedHold,
    acquirer_notify: Arc<Notify>,
}

impl ReleaseAndReacquire {
    pub(super) fn store(&self) -> &Store {
        self.hold.store()
    }

    pub(super) fn spawn(self, tell: Option<oneshot::Sender<ReleaseStatus>>) {
        let Self { local_queues: lines, hold, acquirer_notify: bell } = self;
        let (store, lease) = (hold.store().clone(), Arc::clone(hold.lease()));
        let name = (lease.key.clone(), lease.terms.mode);
        QueueTask::spawn(
            &lines,
            &store,
            &name,
            bell,
            QueueTaskStart::ReleaseAndReacquire(hold, tell),
        );
    }
}

impl ReleaseAction {
    pub(super) fn decide(hold: OwnedHold, turn: Option<HandoverContext>) -> Self {
        let Some(turn) = turn else {
            return Self::Release(hold);
        };
        let lines = Arc::clone(&turn.local_queues);
        match lines.hand_over_or_release(hold, turn) {
            HandoverOutcome::HandedOver => Self::HandedOver,
            HandoverOutcome::Release(hold) => Self::Release(hold),
            HandoverOutcome::ReleaseAndReacquire(hold, bell) => {
                Self::ReleaseAndReacquire(ReleaseAndReacquire {
                    local_queues: lines,
                    hold,
                    acquirer_notify: bell,
                })
            }
        }
    }
}

/// Converts the outcome of a release to the status for its caller.
pub(super) fn release_status(
    facts: &HoldState,
    gave_back: &Result<ReleaseOutcome, Error>,
) -> ReleaseStatus {
    match gave_back {
        _ if facts.loss().is_some() => ReleaseStatus::AlreadyLost,
        Ok(ReleaseOutcome::Released) => ReleaseStatus::Released,
        // The first of two calls may have released it: within the lease, no other call can have.
        Ok(ReleaseOutcome::NotFoundOnRetry) if facts.valid_until() > Instant::now() => {
            ReleaseStatus::Released
        }
        Ok(ReleaseOutcome::NotFoundOnRetry) | Err(_) => ReleaseStatus::Unknown,
        Ok(_) => {
            facts.report_loss_on_release();
            ReleaseStatus::AlreadyLost
        }
    }
}
