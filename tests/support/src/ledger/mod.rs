//! The books of deferral: everything that was accepted, everything that ran, and what became of it.
//!
//! A client writes down each 202, handlers write down each start and each end ([`DeferredHistory`]), whatever is
//! done to the processes meanwhile; and when all is quiet it is [checked](DeferredHistory::check):
//!
//! | | |
//! |---|---|
//! | D1 | each accepted request has ended, in one state, and was never seen in another one that is final |
//! | D1 | the state is what its runs say: done if the last one ended well, and then nothing else |
//! | D4 | the stored response is the one that was given |
//! | D2 | requests of a resource start in the order they were accepted; later ones wait for a retry, unless it is said that they don't |
//! | M1 | runs of a resource do not overlap, those of requests that ran at once included |
//! | M2 | fences grow from run to run of a resource |
//! | M3 | in the long run: a register that looks at fences takes what each run writes that nothing was done to, and nothing twice or late |
//! | D3 | it runs again only after a failure or a fault, only if its method allows it, not more often than it may, and each time is charged |
//! | D3 | nothing runs that no client has sent |
//! | D4, D3 | in the long run: what a client is given at once is what one handler said, and each that ran at once has its client |
//! | L1 | in the long run: a client that asks a process to which nothing is done is served, accepted or told that its resource is busy, within a bound |
//! | N1 | nothing is left in the store: [`JobFleet::finish_and_check`] looks at its keys and counters, at channels and clients |
//! | N1 | nobody calls anything any more, but for the signs of life of idle workers |
//! | N2 | calls per request stay under a ceiling |
//! | N1 | each job is in one place, each key has an owner or an end: [`Store::check`](lockgate::Store::check) says so |
//!
//! A run is `[its start, min(its end, its process's death, the last time it was sure of its lock))`, on one
//! clock for all processes of a host, as in the [check of locks](crate::history). [`JobFleet`] sends the requests and keeps
//! the books; its processes, and the faults of the long run, are those of every [fleet](crate::fleet).

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

/// Processes on one queue: each behind a proxy of its own, on a server of their own; or in a cluster of their own.
pub type JobFleet<G = crate::RedisServer> = crate::fleet::ProcessFleet<JobDomain, G>;

/// The time of the books, ns: `CLOCK_MONOTONIC`.
#[must_use]
pub fn now_ns() -> u64 {
    crate::fleet::clock::now_ns()
}
