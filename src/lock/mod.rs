//! Locks: one holder per resource, in the order of asking but for hand-overs within a process.
//!
//! What happens to a request behind a `LockLayer`: its key is read, and one call asks the store for the
//! lock. If it is free the handler runs under it, and the lock is given back before the response goes
//! out, or as soon as the server drops the request. If somebody else has it, the answer is 409 with
//! `Retry-After` (or another [`BusyStatus`]); with a wait set, the request stands in line first: in this
//! process behind those that came before it, and with a single place for the whole process in the
//! store's line.
//!
//! If the lock is lost while the handler runs, [`OnLoss`] says what its client gets. [`HoldUntil`] keeps the
//! lock for as long as the answer streams. A client that dribbles its request is cut off after the
//! layer's `body_deadline`, with 408.
//!
//! How a layer is put on a route is shown on the first pages of `lockgate-axum` and `lockgate-actix-web`. The same lock
//! is there for code beneath the layers, by the same key: a text such as `"order:7"` is a name of its own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lockgate::{Key, Store};
//!
//! let store = Store::memory();
//! let order = Key::path_param("id", "7"); // that of `LockLayer::by_path_param_as::<u64>("id")`
//! let guard = store.lock(order).wait(Duration::from_secs(5)).acquire().await?;
//! let fence = guard.fence(); // keeps a late writer out: see below
//! guard.release().await;
//! # let _ = fence; Ok(()) }
//! ```
//!
//! # Fences
//!
//! A process that is paused for longer than its lease goes on as if nothing had happened, and no lease can
//! stop it. Whatever must not go back therefore keeps the largest fence it has seen beside its data, and
//! refuses smaller ones. In SQL that is one more column and one more condition:
//!
//! ```sql
//! UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND fence <= $2
//! ```
//!
//! No row updated: somebody has had the lock since. (`<=`, because one holder may write more than once.) The
//! same with a register in memory, and a writer that comes too late:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # let store = lockgate::Store::memory();
//! struct Order { state: &'static str, fence: u64 }
//!
//! fn update(order: &mut Order, state: &'static str, fence: u64) -> bool {
//!     if order.fence > fence {
//!         return false;
//!     }
//!     *order = Order { state, fence };
//!     true
//! }
//!
//! let mut order = Order { state: "new", fence: 0 };
//! let late = store.lock("order:7").fixed_lease(Duration::from_millis(100)).acquire().await?;
//! // It is paused here; its lease ends, and another one has the lock.
//! let next = store.lock("order:7").wait(Duration::from_secs(5)).acquire().await?;
//! assert!(update(&mut order, "paid", next.fence()));
//! assert!(!update(&mut order, "cancelled", late.fence()));
//! assert_eq!(order.state, "paid");
//! # Ok(()) }
//! ```
//!
//! Handlers have the fence from the extractor `Fence`; `LockLayer::fence_header` puts it into the request's
//! header for upstreams that keep the register.
//!
//! # Several locks, readers, and the request itself
//!
//! A request may need several locks ([`Store::locks`](crate::Store::locks), `LockLayer::by_path_params`): they
//! are taken in an order that all processes share, so two that name them the other way round never wait in a
//! circle. That holds for the locks of one call or layer; whoever holds one and asks for another by
//! itself has to keep an order of its own, and until then is saved by the wait's end alone.
//!
//! A lock can be had together with other readers ([`LockRequest::shared`], `LockLayer::read_write`) or with
//! so many others ([`LockRequest::permits`]). There is no way from there to having it alone.
//!
//! A request does not wait for itself: a nested layer, or a call within the handler, gets a share in the
//! lock that is there ([`LockGuard`]). Another service that is called on the way can be told of it
//! ([`HeldLock::delegation_header`], `LockLayer::trust_delegation`).
//!
//! # What it guarantees, and what not
//!
//! Nobody else is granted the lock while this process is sure to have it; a lease (10 s by default) is
//! renewed at a third of itself for as long as the guard lives, at most `max_hold` (60 s). A process
//! that is paused for longer than its lease is told of the loss when it wakes, not before: whoever
//! writes to something that must not go back checks the **fence**, a number that grows with every grant.

mod acquire_all;
mod acquire_options;
mod average_hold_time;
mod delegation;
mod gate;
mod guard;
mod held_lock;
mod held_locks;
mod idempotent_acquire;
mod lease_settings;
mod lock_context;
mod lock_set;
mod outcome;
mod pending_releases;
mod policy;
mod release_settings;
mod request;
mod retry;
mod shared_grant;
#[cfg(test)]
pub(crate) mod tests;
mod ticket;
mod wait_queue;

pub use self::{
    delegation::SharedSecret,
    gate::LockGate,
    guard::{LockGuard, ReleaseStatus},
    held_lock::{HeldLock, HeldLocks},
    lock_context::LockContext,
    lock_set::{LockSet, LockSetRequest},
    outcome::{AcquireError, BusyStatus, LockBusy},
    release_settings::{HoldUntil, OnLoss},
    request::LockRequest,
    ticket::{LockTicket, UnmatchedRequest},
};
