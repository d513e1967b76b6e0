//! The history check of deferral: each accepted request, each run, and its outcome.
//!
//! Clients record each 202, and handlers each start and end of a run ([`DeferredHistory`]), while
//! faults hit the processes. When all requests have ended, the history is
//! [checked](DeferredHistory::check):
//!
//! | | |
//! |---|---|
//! | D1 | each accepted request ends in one state and never shows another final state |
//! | D1 | the state follows from the runs: done if the last one succeeded, and then nothing else |
//! | D4 | the stored response is that of the run |
//! | D2 | requests of a resource start in the order of acceptance; later ones wait for a retry, unless the route allows overtaking |
//! | M1 | runs of a resource do not overlap, direct runs included |
//! | M2 | fences grow from run to run of a resource |
//! | M3 | in the history: a register that checks fences accepts the writes of each undisturbed run, and no write twice or late |
//! | D3 | a request repeats only after a failure or fault, only if its method is repeatable, within its attempts; each attempt is charged |
//! | D3 | no request runs that no client has sent |
//! | D4, D3 | in the history: a direct response is that of one handler, and each direct run has its client |
//! | L1 | in the history: a client of an undisturbed process is served, accepted or refused as busy within a bound |
//! | N1 | no leftovers in the store: [`JobFleet::finish_and_check`] examines its keys and counters, channels and clients |
//! | N1 | no process makes a call at rest, apart from the heartbeats of idle workers |
//! | N2 | the calls per request stay below a ceiling |
//! | N1 | each job is in one state, and each key has an owner or an expiry: [`Store::check`](lockgate::Store::check) reports it |
//!
//! A run is `[its start, min(its end, death of its process, end of its lock's validity))`, on one
//! clock for all processes of a host, as in the [check of locks](crate::history). [`JobFleet`]
//! sends the requests and keeps the records. Its processes, and the faults of the history, are
//! those of every [fleet](crate::fleet).

mod deferrable_request;
mod deferred_report;
mod job_domain;
mod job_fault_history;
mod node;
mod status_lookup;

pub use self::{
    deferrable_request::{DeferrableRequest, RecordingClient, SendOutcome},
    deferred_report::DeferredReport,
    job_domain::JobDomain,
    node::{NodeSetup, RUN_DELAY, RUN_EXPIRY, run_node},
};
pub use crate::{
    checker::{
        ProcessIncarnation,
        deferred::{
            AcceptedJob, AcceptedTerms, ClientAnswer, ClientExchange, DeferredCheckStats,
            DeferredHistory, ObservedStatus, ProcessDisturbance, RecordedRun, RunEnd,
        },
    },
    fleet::RedisTopology,
};

/// Processes on one queue: on their own server, each behind a proxy, or in their own cluster.
pub type JobFleet<G = crate::RedisServer> = crate::fleet::ProcessFleet<JobDomain, G>;

/// Time of the records, ns: `CLOCK_MONOTONIC`.
#[must_use]
pub fn now_ns() -> u64 {
    crate::fleet::clock::now_ns()
}
