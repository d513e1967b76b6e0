//! Batching of calls: calls that wait for the same lane are sent together.
//!
//! A [`CallBatcher`] serves one lane. A call that finds the lane idle is sent by its caller, in the
//! caller's own task. Calls that arrive while batches are in flight wait in a queue, and are sent
//! together when a batch returns or when they fill one. A caller leads the queue if it contains
//! only submitted calls besides its own, and no task has come for it yet: it sends them along,
//! which saves the detour through another task. A [`BatchTransport`] encodes and sends the batches.
//!
//! # An undo never overtakes its call
//!
//! A caller that was dropped or timed out is followed by an undo on the same lane.
//!
//! - Calls are taken from the queue and put on the wire in one go, one batch after the other
//!   (`dequeuing`). Later calls follow them.
//! - No call is sent, for the first time or again, after its caller is gone. So when there is an
//!   undo, its call is on the wire already or never will be. That is why several batches may be in
//!   flight.
//! - A caller that sends alone, or leads others, does so in its own future, which ends with it. The
//!   other calls then return to the front of the queue.
//! - In a cluster a lane belongs to a shard, and the shard may move to another cluster node.
//!   `target::cluster` explains why the order holds.
//!
//! # Deadlines and stalls
//!
//! A caller waits until its own deadline, which the [`deadline_timer`] signals. A batch of several
//! calls has a task of its own and depends on none of its callers. If the task ends early, with its
//! runtime, its pending calls return to the queue.
//!
//! A batch that takes longer than `stall_timeout`, and than four round trips, does not hold up
//! other calls: its future may not be polled, or its thread may be blocked. A batch past
//! `batch_expiry` is not counted at all.

mod batch_pacing;
mod batch_sender;
mod batch_transport;
mod batched_call;
mod call_batcher;
mod deadline_timer;
mod lane_queue;
mod outcome_cell;
mod round_trip_stats;
mod settle_batch;
mod single_call;
#[cfg(test)]
mod tests;

pub(super) use self::batch_transport::{BatchFault, BatchTransport, CallReply, MAX_BATCH_WEIGHT};
pub(super) use self::batched_call::BatchedCall;
use self::call_batcher::{BatcherInner, CallOutcome, in_doubt_error};
pub(super) use self::call_batcher::{CallBatcher, RETRY_PAUSE, pause_after_refusal};
