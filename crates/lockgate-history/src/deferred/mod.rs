//! Histories of deferred requests: what was accepted, what ran, and what became of it.
//!
//! A client writes down each 202 ([`Accepted`]) and whatever else it is told ([`Asked`]), handlers each start and end ([`Event`], a line each), and when all is
//! quiet each id is asked about ([`Seen`]). A run is `[its start, min(its end, its being given up, its process's
//! death, the last time it was sure of its lock))`.

mod deferred_history;
mod check;
mod run_event;

pub use self::{
    deferred_history::{AcceptedJob, ClientAnswer, ClientExchange, RunEnd, DeferredHistory, RecordedRun, ObservedStatus, AcceptedTerms, ProcessDisturbance},
    check::DeferredCheckStats,
    run_event::RunEvent,
};
