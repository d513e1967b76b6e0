//! Histories of deferred requests: what was accepted, what ran, and what became of it.
//!
//! A client writes down each 202 ([`Accepted`]) and whatever else it is told ([`Asked`]), handlers each start and end ([`Event`], a line each), and when all is
//! quiet each id is asked about ([`Seen`]). A run is `[its start, min(its end, its being given up, its process's
//! death, the last time it was sure of its lock))`.

mod books;
mod check;
mod event;

pub use self::{
    books::{Accepted, Answer, Asked, End, History, Run, Seen, Terms, Trouble},
    check::Looked,
    event::Event,
};
