//! Local wait queues: the waiters of this process, in order of arrival.
//!
//! - If this process holds the lock or is already asking for it, a request joins the local queue.
//!   Otherwise its own future asks the store.
//! - A released guard hands the lock over to the first waiter without a call, within the limits of
//!   [`queue_snapshot`]. If it may not, one call releases the lock and reacquires it for the next
//!   waiter of this process.
//! - While another process holds the lock, a [`queue_task`] keeps this process's one entry in the
//!   store's queue.
//!
//! A waiter's future owns only the receiving end of a channel, so dropping it leaves nothing
//! behind.

mod acquire_or_wait;
mod announced_joins;
mod grant_delivery;
mod hand_over_or_release;
mod handover_prefetcher;
mod holder_lease_watch;
mod leader_acquire;
mod local_queue;
mod local_queue_map;
mod local_queues;
mod local_waiters;
mod queue_entry;
mod queue_snapshot;
mod queue_task;
mod queued_waiter;

pub(super) use self::{
    hand_over_or_release::HandoverOutcome,
    local_queue_map::LocalQueueId,
    local_queues::LocalQueues,
    queue_snapshot::{FenceRange, HandoverLimits, QueueSnapshot},
    queue_task::{QueueTask, QueueTaskStart},
    queued_waiter::WaitOutcome,
};
