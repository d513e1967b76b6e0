//! Locks over several independent stores, held by a majority of them.
//!
//! A single Redis with replicas loses a grant if it fails over before the replicas have it. A
//! quorum of independent servers (the
//! [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) algorithm)
//! continues when a minority is unavailable: of five, two may be dead, frozen or disconnected. It
//! costs one call to each store for each acquisition and each release, and a second round trip for
//! the fence. Each node uses the same operations, leases and lease agent as a lock of a single
//! store: renewal at a third, release of dropped grants, loss.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lockgate::Store;
//!
//! // In production: `Store::connect` to servers that share neither machine nor replication.
//! let quorum = Store::quorum([Store::memory(), Store::memory(), Store::memory()])?;
//! let guard = quorum.lock("order:7").wait(Duration::from_secs(5)).acquire().await?;
//! let fence = guard.fence(); // rejects a late writer
//! guard.release().await;
//! # let _ = fence; Ok(()) }
//! ```
//!
//! # Algorithm
//!
//! All nodes are asked at once, each with a timeout that is short compared with the lease. The
//! outcome is decided as soon as a majority has granted the lock, or can no longer do so. A later
//! grant of a node belongs to the guard, if there is one, and is released with it. Without a guard
//! it is released at once, as are the grants of a dropped future. The validity time of the lock is
//! that of a majority of its leases. Each lease counts on the local monotonic clock from before its
//! node was asked, less 1% and 2 ms for clock drift.
//!
//! Each node's lease is renewed at a third. A node without a lease is asked again every third of a
//! lease: one that lost it (it was restarted empty), could not be asked, or did not grant it at
//! first. When fewer than a majority are left, the lock is lost. The loss is reported at once and
//! is final, and the remaining leases are released.
//!
//! The **fence** is the largest fence that the majority granted. It is written back to a majority
//! that has the lock before the guard is returned. Any two majorities have a node in common, and
//! there the later one gets a larger fence. So the fences of a lock grow, whichever nodes granted
//! it.
//!
//! # Limits
//!
//! - **Safety depends on time.** Two holders can both assume that they have the lock if the clock
//!   of a node jumps or runs more than 1% fast, or if a process is paused and relies on nothing but
//!   its lock afterwards. As with any lease, only the fence, checked where the change is written,
//!   keeps a late writer out ([`lock`](crate::lock#fences)), as [Martin
//!   Kleppmann](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) has
//!   shown for Redlock.
//! - **A node without its data votes twice.** After a restart without its data, a node grants again
//!   the locks that it had granted. Either it writes each change to disk before it answers
//!   (`appendonly yes`, `appendfsync always`), or it is restarted only after the longest lease has
//!   passed. Its fences then start again from its own clock: fences keep growing if the clocks of
//!   the nodes differ by no more than the time for which it was down.
//! - **No replicas among the nodes.** A node that fails over to a replica may have lost data too.
//! - **No queue, no order.** There is no queue across nodes: a request that waits asks again after
//!   a random pause. Waiters in the queue of one node's own lock of that name come first.
//! - **Exclusive locks only**: no shared locks and no permits (a majority of each node's permits is
//!   not a limit), no handovers, no deferred requests and no `LockLayer`. Their state (records,
//!   queues, jobs, delegations) belongs to a single store.
//!
//! A node's lock is an ordinary lock of that store, with its name. If other locks live in those
//! servers, give the nodes a namespace of their own, the same one for all users of the quorum.

mod lease_repair;
mod quorum_guard;
mod quorum_hold;
mod quorum_request;
#[cfg(test)]
mod tests;
mod vote_request;

pub use self::{
    quorum_guard::QuorumGuard,
    quorum_request::{Quorum, QuorumRequest},
};
