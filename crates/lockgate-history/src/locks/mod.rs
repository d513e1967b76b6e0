//! Histories of locks: who asked, who was granted what, until when they were sure of it.
//!
//! A hold is `[granted, min(release asked, loss told, end of the validity that the guard last told, death))`. Each of
//! these is late or early by less than what makes a hold shorter than it was, so an overlap is real. Where a process
//! was killed or stopped, say so in [`History::killed`] and [`History::troubles`]: order and speed are judged only
//! where nothing was amiss.

mod lock_history;
mod check;
mod lock_event;

pub use self::{
    lock_history::{LockHistory, FencedRegister, DisturbedInterval},
    check::LockCheckStats,
    lock_event::{LockEvent, RecordedLockMode},
};
