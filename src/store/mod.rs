//! The store: where locks, lines, quotas and deferred requests live. The only room that knows Redis.
//!
//! [`Store`] is a cheap handle that all three layers, and code beneath them, share. It is one of two
//! things behind one trait: Redis (or Valkey), for more than one process, or [`Store::memory`], the
//! same steps in this process. What every request is promised here: an answer within the deadline.

mod agent;
mod attempt;
mod backend;
mod charging;
mod deferred;
mod direct_runs;
mod ending;
mod facts;
#[cfg(any(test, feature = "fsck"))]
mod fsck;
mod handle;
mod hints;
mod hold;
mod job;
mod job_watch;
#[cfg(any(feature = "redis", test))]
mod keys;
mod lease;
mod memory;
mod rate;
#[cfg(feature = "redis")]
mod redis;
mod rounds;
mod seat;
mod tasks;
#[cfg(test)]
mod tests;

pub(crate) use self::backend::{
    ACCEPT_WINDOW, Acquire, Acquired, Beat, Began, Call, Caps, Charging, Claim, Claimed, Direct,
    Due, Enqueue, Enqueued, GaveBack, JobPolicy, JobView, Listing, Merge, Mode, NextRun, Node,
    Others, PendingMark, Run, SPARE_FENCES, Settle, SettledRun, Tally, Token, Verdict, Wins,
    random_name,
};
#[cfg(any(test, feature = "fsck"))]
pub use self::fsck::{Check, CheckReport, Finding, FindingKind};
pub(crate) use self::hints::{Hint, Joined};
pub(crate) use self::job_watch::{JobWatch, Since};
#[cfg(test)]
pub(crate) use self::keys::{Keys, Kind};
#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::memory::Memory;
#[cfg(test)]
pub(crate) use self::rate::Algorithm;
pub(crate) use self::rate::{
    By, Charge, Charged, Counter, Item, Penalty, Rule, SettleCharge, Settled, State, States, Window,
};
#[cfg(feature = "redis")]
pub use self::redis::StoreBuilder;
pub(crate) use self::tasks::{
    End, EndAs, Graves, Limits, MOST as MOST_RUNS, MOST_BYTES, Push, PushedAs, REASON, Record,
    RunToken, Started, TaskView, Turn, Turned, Unique,
};
#[cfg(test)]
pub(crate) use self::tests::{Fault, Faults, Log, elsewhere, faulty, faulty_with_clock, spawn};
#[cfg(all(test, feature = "redis"))]
pub(crate) use self::tests::{Front, says};
pub(crate) use self::{
    attempt::Attempt,
    direct_runs::{DirectRun, DirectRuns},
    ending::{DirectEnd, Ending},
    facts::Facts as HoldFacts,
    handle::WeakStore,
    hold::Hold,
    lease::{Lease, LossWatcher, Terms, replicate},
};
pub use self::{deferred::OnFailure, facts::Loss};
pub use self::{
    handle::Store,
    job::{JobId, JobState},
    tasks::{QueueStats, TaskFault, TaskId, TaskState},
};
