//! Histories of deferred requests: acceptances, runs and outcomes.
//!
//! Three kinds of records are combined:
//!
//! - A client logs each 202 ([`AcceptedJob`]) and every other response ([`ClientExchange`]).
//! - Handlers log the start and the end of each run, one line each ([`RunEvent`]).
//! - At the end of the test the status of each job is read ([`ObservedStatus`]).
//!
//! A run is the interval
//! `[start, min(end, abort, drop, death of its process, validity time of its lock))`.

mod check;
mod deferred_history;
mod deferred_records;
mod run_event;

pub use self::{
    check::DeferredCheckStats,
    deferred_history::DeferredHistory,
    deferred_records::{
        AcceptedJob, AcceptedTerms, ClientAnswer, ClientExchange, ObservedStatus,
        ProcessDisturbance, RecordedRun, RunEnd,
    },
    run_event::RunEvent,
};
