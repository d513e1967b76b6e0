//! Steps of deferred requests: what goes in, and what comes out.
//!
//! A job is queued in the line of its lock, or *late* (it waits for a time outside of any line: a delay, a
//! retry that others may pass), or running, or has ended. Each step is the script of the same name.

mod accepted;
mod runs;
mod steps;
mod view;

pub use self::accepted::OnFailure;
pub(crate) use self::{
    accepted::{
        Began, Call, Caps, Direct, ENDED_SIZE, Enqueue, Enqueued, FEW, FEW_BYTES, HALF, JobPolicy,
        Merge, RESERVED, SHORT, SHORT_BYTES, Wins,
    },
    runs::{Claim, Claimed, NextRun, Run, Running, Settle, SettledRun, Verdict},
    steps::Jobs,
    view::{Beat, Due, JobView, Listed, Listing, Past, PendingMark, Tally},
};
