//! Locks: one holder per resource, in the order of asking.
//!
//! What happens to a request behind a `LockLayer`: its key is read, and one call asks the store for the
//! lock. If it is free the handler runs under it, and the lock is given back before the response goes
//! out, or as soon as the server drops the request. If somebody else has it, the answer is 409 with
//! `Retry-After`; with a wait set, the request stands in line first: in this process behind those that
//! came before it, and with a single place for the whole process in the store's line.
//!
//! The same lock is there for code beneath the layers:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lockgate::Store;
//!
//! let store = Store::memory();
//! let guard = store.lock("order:7").wait(Duration::from_secs(5)).acquire().await?;
//! // `WHERE fence < $1` in the statements under the lock keeps a late writer out.
//! let fence = guard.fence();
//! guard.release().await;
//! # let _ = fence; Ok(()) }
//! ```
//!
//! # What it guarantees, and what not
//!
//! Nobody else is granted the lock while this process is sure to have it; a lease (10 s by default) is
//! renewed at a third of itself for as long as the guard lives, at most `max_hold` (60 s). A process
//! that is paused for longer than its lease is told of the loss when it wakes, not before: whoever
//! writes to something that must not go back checks the **fence**, a number that grows with every grant.

mod ends;
mod estimate;
mod gate;
mod guard;
mod line;
mod request;
#[cfg(test)]
pub(crate) mod tests;

pub use self::{
    ends::{HoldUntil, OnLoss},
    gate::{LockFacts, LockGate, LockTicket},
    guard::{HeldLock, LockGuard, Released},
    request::{Busy, LockRequest, NotAcquired},
};
