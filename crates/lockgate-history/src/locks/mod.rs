//! Histories of locks: who asked, who was granted what, until when they were sure of it.
//!
//! A hold is `[granted, min(release asked, loss told, end of the validity that the guard last told, death))`. Each of
//! these is late or early by less than what makes a hold shorter than it was, so an overlap is real. Where a process
//! was killed or stopped, say so in [`LockHistory::killed_at`] and [`LockHistory::disturbances`]: order and speed are judged only
//! where nothing was amiss.

mod check;
mod lock_event;
mod lock_history;

pub use self::{
    check::LockCheckStats,
    lock_event::{LockEvent, RecordedLockMode},
    lock_history::{DisturbedInterval, FencedRegister, LockHistory},
};
