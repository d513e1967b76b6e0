//! The history check of locks: processes hammer a few locks on one server while they are killed, stopped and cut
//! off; each writes down what it sees, and at the end a checker reads it all.
//!
//! [`LockDomain`] is the [domain](crate::fleet); the workers are processes of the same program
//! ([`run_lock_worker`]). What is checked, by
//! the checker of histories:
//!
//! | | |
//! |---|---|
//! | M1, P1, R1 | holds that exclude each other do not overlap; a hold is `[granted, min(release asked, loss told, end of its validity, death))` on one clock |
//! | M2 | fences are unique, and grow from what ended to what began after it |
//! | M3 | the fenced register takes no write below its highest fence, and loses no increment |
//! | F1 | who stands in line is passed by at most H + 1 of each other process that came later |
//! | L1 | after the faults each waiter is answered within a bound |
//! | N1 | after quiet: no key but `f` and `meta`, a subscription a process at most, no call |
//! | N2 | calls per acquisition stay under a ceiling |
//!
//! The unfenced register may lose increments under pauses, and how many is only told.

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
