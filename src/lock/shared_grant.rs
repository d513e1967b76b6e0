//! Grant that the guards of one lock share, and its release or handover by the last guard.

use std::{fmt, sync::Arc};

use tokio::sync::{Notify, oneshot};

use super::{
    local_wait_queue::{
        FenceRange, HandoverOutcome, LocalQueueId, LocalQueues, QueueTask, QueueTaskStart,
    },
    release_status::ReleaseStatus,
};
use crate::store::{HoldState, OwnedHold, Store};

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
    pub(super) fn new(hold: OwnedHold, handover: Option<HandoverContext>) -> Self {
        Self { active: Some(ActiveGrant { hold, handover }) }
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
        let ActiveGrant { hold, handover } =
            self.active.take().expect("the grant is held until it is consumed");
        (hold, handover)
    }
}

impl Drop for SharedGrant {
    fn drop(&mut self) {
        if let Some(grant) = self.active.take() {
            match ReleaseAction::decide(grant.hold, grant.handover) {
                // The lease agent releases a hold that is dropped.
                ReleaseAction::HandedOver | ReleaseAction::Release(_) => {}
                ReleaseAction::ReleaseAndReacquire(reacquire) => reacquire.spawn(None),
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
    task_notify: Arc<Notify>,
}

impl ReleaseAndReacquire {
    pub(super) fn store(&self) -> &Store {
        self.hold.store()
    }

    pub(super) fn spawn(self, status_sender: Option<oneshot::Sender<ReleaseStatus>>) {
        let Self { local_queues, hold, task_notify } = self;
        let (store, lease) = (hold.store().clone(), Arc::clone(hold.lease()));
        let queue_id = LocalQueueId::of_lease(&lease);
        QueueTask::spawn(
            &local_queues,
            &store,
            &queue_id,
            task_notify,
            QueueTaskStart::ReleaseAndReacquire { hold, status_sender },
        );
    }
}

impl ReleaseAction {
    pub(super) fn decide(hold: OwnedHold, handover: Option<HandoverContext>) -> Self {
        let Some(handover) = handover else {
            return Self::Release(hold);
        };
        let local_queues = Arc::clone(&handover.local_queues);
        match local_queues.hand_over_or_release(hold, handover) {
            HandoverOutcome::HandedOver => Self::HandedOver,
            HandoverOutcome::Release(hold) => Self::Release(hold),
            HandoverOutcome::ReleaseAndReacquire { hold, task_notify } => {
                Self::ReleaseAndReacquire(ReleaseAndReacquire { local_queues, hold, task_notify })
            }
        }
    }
}
