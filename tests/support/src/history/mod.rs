//! The history check of locks: processes contend for a few locks on one server while they are
//! killed, paused and cut off. Each records its events, and a checker examines all records at the
//! end.
//!
//! [`LockDomain`] is the [domain](crate::fleet); the workers are processes of the same program
//! ([`run_lock_worker`]). The checker of histories checks:
//!
//! | | |
//! |---|---|
//! | M1, P1, R1 | holds that exclude each other do not overlap; a hold is `[grant, min(start of the release, reported loss, end of its validity, death))` on one clock |
//! | M2 | fences are unique, and grow from an ended hold to one that started after it |
//! | M3 | the fenced register accepts no write below its highest fence, and loses no increment |
//! | F1 | a waiter is overtaken by at most `max_handovers` + 1 later arrivals of each other process |
//! | L1 | after the faults each waiter gets its result within a bound |
//! | N1 | at rest: no key but `f` and `meta`, at most one subscription per process, no call |
//! | N2 | the calls per acquisition stay below a ceiling |
//!
//! The unfenced register may lose increments during pauses. Their number is only reported.

mod contender_process;
mod holder_process;
mod lock_attempt;
mod lock_domain;
mod lock_worker;

pub use self::{
    contender_process::{ACQUIRES_PER_CONTENDER, CONTENDER_COUNT, run_contenders},
    holder_process::run_holder,
    lock_domain::LockDomain,
    lock_worker::run_lock_worker,
};
