//! Locks over several stores that know nothing of each other: who has a majority of them has the lock.
//!
//! One Redis with replicas loses a grant when it fails over before the replicas have it. A quorum of
//! independent servers (the [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/)
//! algorithm) goes on when some of them are away: of five, two may be dead,
//! frozen or cut off. It costs a call to each of them for each acquisition and each release, and a second round
//! trip for the fence. What is here stands on the same steps, leases and agents as a lock of one store, once
//! a node: renewal at a third, giving back what was dropped, loss.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lockgate::Store;
//!
//! // In earnest: `Store::connect` to servers that share neither machine nor replication.
//! let quorum = Store::quorum([Store::memory(), Store::memory(), Store::memory()])?;
//! let guard = quorum.lock("order:7").wait(Duration::from_secs(5)).acquire().await?;
//! let fence = guard.fence(); // keeps a late writer out
//! guard.release().await;
//! # let _ = fence; Ok(()) }
//! ```
//!
//! # How it goes
//!
//! All nodes are asked at once, each within a time that is small against the lease. It is decided as soon as a
//! majority has granted it, or no longer can. What a node grants after that belongs to the guard, if there is
//! one, and is given back with it; else it is given back at once, and so is whatever a dropped future leaves
//! behind. The holder is sure of the lock for as long as it is of a majority of its leases, each counted on
//! its own monotonic clock from before that node was asked, less 1% and 2 ms for clocks that do not run alike.
//!
//! Each node's lease is renewed at a third. A node that has lost it (it was restarted empty), could not be
//! asked for a lease, or had not granted it at first, is asked again every third of a lease. When less than a
//! majority is left the lock is lost: that is told at once, is final, and what is left is given back.
//!
//! The **fence** is the largest of those that the majority gave, and is written back to a majority that has
//! the lock before the guard is there. Any two majorities have a node in common, and there the later one gets
//! a larger fence: so fences of a lock grow, whichever nodes granted it.
//!
//! # What it does not give
//!
//! - **Safety rests on time.** Two may believe they have the lock if the clock of a node jumps or runs more than
//!   1% fast, or a process is paused and looks at nothing but its lock afterwards. As with any lease, only the
//!   fence, checked where the change is written, keeps a late writer out
//!   ([`lock`](crate::lock#fences)), as [Martin Kleppmann](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html)
//!   has shown of Redlock.
//! - **A node that forgets votes twice.** One that was restarted without its data grants again what it had granted.
//!   Either it writes each change to disk before it answers (`appendonly yes`, `appendfsync always`), or it is
//!   started again only after the longest lease has passed. What it holds of the fence's mark begins anew from
//!   its own clock then: fences grow further if the clocks of the nodes do not differ by more than the time
//!   it was away.
//! - **No replicas among the nodes.** A node that fails over to a replica may have forgotten too.
//! - **No line, no order.** There is no queue across nodes: who waits asks again after a random pause. Whoever
//!   waits in the line of one node's own lock of that name stands before.
//! - **One holder only**: no readers, no permits (a majority of each node's permits is not a bound), no local
//!   hand-over, no deferred requests, and no `LockLayer`: what that promises beyond the lock itself (records,
//!   lines, deferral, a word to other services) lies in one store.
//!
//! A node's lock is an ordinary lock of that store, with its name. Give the nodes a namespace of their own,
//! the same one for all who share the quorum, if other locks live in those servers.

mod guard;
mod lease_repair;
mod quorum_hold;
mod request;
#[cfg(test)]
mod tests;
mod vote_request;

pub use self::{
    guard::QuorumGuard,
    request::{Quorum, QuorumRequest},
};
