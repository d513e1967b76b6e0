//! Histories of deferred requests: what was accepted, what ran, and what became of it.
//!
//! A client writes down each 202 ([`AcceptedJob`]) and whatever else it is told ([`ClientExchange`]), handlers each start and end ([`RunEvent`], a line each), and when all is
//! quiet each id is asked about ([`ObservedStatus`]). A run is `[its start, min(its end, its being given up, its process's
//! death, the last time it was sure of its lock))`.

mod check;
mod deferred_history;
mod run_event;

pub use self::{
    check::DeferredCheckStats,
    deferred_history::{
        AcceptedJob, AcceptedTerms, ClientAnswer, ClientExchange, DeferredHistory, ObservedStatus,
        ProcessDisturbance, RecordedRun, RunEnd,
    },
    run_event::RunEvent,
};
