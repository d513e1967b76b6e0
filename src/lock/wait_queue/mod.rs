//! The local line: those of this process who wait for a lock, in the order they came.
//!
//! What happens to a request that waits: if this process has the lock, or has somebody asking for it
//! already, the request stands behind them in memory; else it asks the store itself. A guard that ends
//! hands the lock to the first of the line without asking the store, within the [rules](rules); when it
//! may not, one call gives the lock back and asks again for the next of this process. While somebody
//! else has it, a [keeper](keeper) keeps the process's one place in the store's line.
//!
//! So a waiter's future holds nothing but the end of a channel, and dropping it leaves nothing behind.

mod acquire;
mod handover;
mod local_queue;
mod local_queues;
mod queue_entry;
mod queue_snapshot;
mod queue_task;
mod snapshot_prefetcher;
mod waiter;

pub(super) use self::{
    handover::HandoverOutcome,
    local_queues::LocalQueues,
    queue_snapshot::{FenceRange, HandoverLimits, QueueSnapshot},
    queue_task::{QueueTask, QueueTaskStart},
    waiter::WaitOutcome,
};
