//! Histories of locks: requests, grants, and their validity times.
//!
//! A hold is the interval
//! `[grant, min(release, reported loss, validity time of the guard, death))`. Inaccuracies of these
//! times only shorten it, so an overlap of two holds is real.
//!
//! A test records the processes that it kills or stops in [`LockHistory::killed_at`] and
//! [`LockHistory::disturbances`]. Order and speed are checked only in undisturbed periods.

mod check;
mod lock_event;
mod lock_history;

pub use self::{
    check::LockCheckStats,
    lock_event::{LockEvent, RecordedLockMode},
    lock_history::{DisturbedInterval, FencedRegister, LockHistory},
};
