//! Locks with leases and fences, for requests behind a `LockLayer` and for code without a layer.
//!
//! A [`LockLayer`] reads the key of a request and acquires its lock with one call to the store:
//!
//! - If the lock is free, the handler runs under it. The lock is released before the response is
//!   sent, or as soon as the server drops the request.
//! - If the lock is busy, the response is 409 with `Retry-After` (or another [`BusyStatus`]).
//! - If a wait is set, a request waits before it is refused: in the local queue behind earlier
//!   waiters of this process, which has a single entry in the store's wait queue.
//!
//! Waiters are served in order of arrival, except that a process may hand the lock over to its own
//! waiters within [`LockRequest::handover_limits`].
//!
//! [`OnLoss`] sets the response to a request that loses its lock while the handler runs.
//! [`HoldUntil`] can keep the lock until the response body ends. A client that sends its body too
//! slowly gets a 408 after the layer's `body_read_timeout`.
//!
//! The front pages of `lockgate-axum` and `lockgate-actix-web` show a layer on a route. Code
//! without a layer acquires the same lock by the same key. Text such as `"order:7"` becomes a
//! [`Key::custom`](crate::Key::custom).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lockgate::{Key, Store};
//!
//! let store = Store::memory();
//! let order = Key::path_param("id", "7"); // the key of `LockLayer::by_path_param_as::<u64>("id")`
//! let guard = store.lock(order).wait(Duration::from_secs(5)).acquire().await?;
//! let fence = guard.fence(); // rejects a late writer: see below
//! guard.release().await;
//! # let _ = fence; Ok(()) }
//! ```
//!
//! # Fences
//!
//! A process that is paused for longer than its lease continues as if it still held the lock, and
//! no lease can stop it. A protected resource therefore stores the largest fence it has received
//! and rejects writes with a smaller one. In SQL that takes one more column and one more condition:
//!
//! ```sql
//! UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND fence <= $2
//! ```
//!
//! If no row is updated, the lock was granted again in the meantime. (`<=`, because one holder may
//! write more than once.) The same rule with a register in memory and a late writer:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//! // The first holder is paused here: its lease expires, and a second holder gets the lock.
//! let next = store.lock("order:7").wait(Duration::from_secs(5)).acquire().await?;
//! assert!(update(&mut order, "paid", next.fence()));
//! assert!(!update(&mut order, "cancelled", late.fence()));
//! assert_eq!(order.state, "paid");
//! # Ok(()) }
//! ```
//!
//! Handlers get the fence from the extractor `Fence`. `LockLayer::fence_header` adds it to the
//! request's headers, for an upstream service that stores the largest fence.
//!
//! # Several locks, shared locks and reentrancy
//!
//! A request may need several locks ([`Store::locks`](crate::Store::locks),
//! `LockLayer::by_path_params`). They are acquired in one order that all processes share, so
//! requests that name the same locks in different orders cannot deadlock. This covers the locks of
//! one call or layer. Code that holds a lock and acquires another in a separate call must keep an
//! order of its own; otherwise only the end of the wait resolves a deadlock.
//!
//! A lock can be shared by readers ([`LockRequest::shared`], `LockLayer::read_write`) or by a
//! number of holders ([`LockRequest::permits`]). Neither can be upgraded to an exclusive lock.
//!
//! Acquiring is reentrant: a nested layer, or a call within the handler, gets another guard on the
//! grant that the request holds ([`LockGuard`]). A service that is called on the way can share the
//! lock by delegation ([`HeldLock::delegation_header`], `LockLayer::trust_delegation`).
//!
//! # Guarantees and limits
//!
//! The lock is granted to no other holder during its validity time: the part of the lease that is
//! certain on the clock of this process. The lease (10 s by default) is renewed at a third of
//! itself while the guard lives, for at most `max_hold` (60 s). A process that is paused for longer
//! than its lease learns of the loss only when it resumes. A resource that needs protection against
//! its late writes checks the **fence**, a number that grows with each grant.

mod acquire_all;
mod acquire_lock;
mod acquire_options;
mod average_hold_time;
mod delegation_header;
mod gate;
mod held_lock_view;
mod held_locks;
mod idempotency_lookup;
mod local_wait_queue;
mod lock_guard;
mod lock_inspection;
mod lock_outcome;
mod lock_request;
mod lock_retry;
mod lock_set;
mod lock_set_request;
mod lock_span;
mod pending_releases;
mod release_settings;
mod release_status;
mod shared_grant;
mod shared_secret;
mod stripped_headers;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(feature = "metrics")]
mod waiter_count;

#[cfg(feature = "metrics")]
pub(crate) use self::waiter_count::waiter_count;
pub use self::{
    gate::{BusyStatus, LockEntryContext, LockLayer, LockTicket, UnmatchedRequestTicket},
    held_lock_view::{HeldLock, HeldLocks},
    lock_guard::LockGuard,
    lock_inspection::{LockHolder, LockInspection, LockWaiter, WaitingProcess},
    lock_outcome::{AcquireError, LockBusy},
    lock_request::LockRequest,
    lock_set::LockSet,
    lock_set_request::LockSetRequest,
    release_settings::{HoldUntil, OnLoss},
    release_status::ReleaseStatus,
    shared_secret::SharedSecret,
};
