//! [`LockInspection`]: holders, waiters and deferred requests of a lock.

use std::{cmp::Reverse, collections::HashSet, fmt, time::Duration};

use serde::Serialize;

use super::lock_request::LockRequest;
use crate::{
    error::Error,
    json_time::{duration_ms, optional_duration_ms},
    key::Key,
    store::{FleetReport, HolderKind, JobId, LockSnapshot, LockToken, SnapshotHolder},
};

/// State of a lock for operators.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LockInspection {
    /// Name of the lock, as in [`Key::operator_name`].
    pub lock: String,
    /// Its holders: one, or several of a shared lock or of permits; at most 100.
    pub holders: Vec<LockHolder>,
    /// Processes in its queue, the first one first; at most 100.
    pub waiters: Vec<LockWaiter>,
    /// Number of processes in its queue. Each may have several waiting requests.
    pub waiter_count: u64,
    /// Processes with waiting requests, by their own account; those of the queue too. A process
    /// has no entry in the queue while its requests wait behind its own hold.
    pub waiting_processes: Vec<WaitingProcess>,
    /// Deferred requests that wait for it or run under it, at most 100.
    pub jobs: Vec<JobId>,
    /// Number of these deferred requests.
    pub job_count: u64,
}

/// Holder of a lock. Host and times of the hold come from its process, and are unknown if that has
/// not answered.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LockHolder {
    /// `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// Id of the process; see [`ProcessReport::node`](crate::ProcessReport::node).
    pub node: String,
    /// Host of the process.
    pub host: Option<String>,
    /// Process id on its host.
    pub pid: Option<u32>,
    /// Time for which the lock was held so far.
    #[serde(rename = "held_ms", serialize_with = "optional_duration_ms")]
    pub held: Option<Duration>,
    /// Fence of the hold.
    pub fence: Option<u64>,
    /// Time until the lease ends unless it is renewed.
    #[serde(rename = "lease_left_ms", serialize_with = "duration_ms")]
    pub lease_left: Duration,
    /// True if a deferred request runs under the lock.
    pub is_run: Option<bool>,
    /// Method and route pattern of its request, such as `POST /orders/{id}`. `None` if code has
    /// taken the lock.
    pub route: Option<String>,
    /// True if the lock is reserved for the next waiter, who has not taken it yet.
    pub is_offer: bool,
}

/// Process in the queue of a lock.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LockWaiter {
    /// `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// Id of the process; see [`ProcessReport::node`](crate::ProcessReport::node).
    pub node: String,
    /// Host of the process, if it has answered.
    pub host: Option<String>,
    /// Process id on its host.
    pub pid: Option<u32>,
    /// Time since its first request of now joined the queue.
    #[serde(rename = "waited_ms", serialize_with = "duration_ms")]
    pub waited: Duration,
}

/// Process in which requests or tasks wait for a lock.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitingProcess {
    /// Id of the process; see [`ProcessReport::node`](crate::ProcessReport::node).
    pub node: String,
    /// Host of the process.
    pub host: String,
    /// Process id on its host.
    pub pid: u32,
    /// Number of its requests and tasks that wait.
    pub waiters: u64,
    /// Longest wait of them so far.
    #[serde(rename = "longest_ms", serialize_with = "duration_ms")]
    pub longest: Duration,
}

impl LockRequest {
    /// Returns the holders of the lock, the times of their holds, its waiters and its deferred
    /// requests. Settings of the request do not matter.
    ///
    /// The store says who holds the lock and which processes queue for it. The processes say since
    /// when they hold it, and how many of their requests wait. If one does not answer within half a
    /// second, as after a crash, its part is unknown.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = lockgate::Store::memory();
    /// let guard = store.lock("order:7").acquire().await?;
    /// let lock = store.lock("order:7").inspect().await?;
    /// assert_eq!(lock.holders[0].fence, Some(guard.fence()));
    /// println!("{lock}"); // order:7 is held by web-3 (pid 4711) for 0.0 s, ...
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn inspect(&self) -> Result<LockInspection, Error> {
        let snapshot = self.store.backend().inspect_lock(self.key.clone()).await?;
        let is_in_use = !snapshot.holders.is_empty() || !snapshot.waiters.is_empty();
        let fleet = match is_in_use {
            true => self.store.ask_fleet(Some(&self.key)).await?,
            false => FleetReport::default(),
        };
        Ok(LockInspection::new(&self.key, snapshot, &fleet))
    }
}

impl LockInspection {
    fn new(key: &Key, snapshot: LockSnapshot, fleet: &FleetReport) -> Self {
        let waiters = snapshot.waiters.into_iter().map(|waiter| {
            let process = fleet.process(waiter.token.node());
            LockWaiter {
                mode: waiter.mode,
                node: waiter.token.node().to_owned(),
                host: process.map(|process| process.host.clone()),
                pid: process.map(|process| process.pid),
                waited: waiter.waited,
            }
        });
        Self {
            lock: key.operator_name().into_owned(),
            holders: snapshot.holders.iter().map(|holder| LockHolder::new(holder, fleet)).collect(),
            waiters: waiters.collect(),
            waiter_count: snapshot.waiter_count,
            waiting_processes: WaitingProcess::list(key, fleet),
            jobs: snapshot.jobs,
            job_count: snapshot.job_count,
        }
    }

    /// Returns the number of processes that wait: in the queue, or behind their own hold.
    fn waiting_process_count(&self) -> u64 {
        let queued: HashSet<_> = self.waiters.iter().map(|waiter| waiter.node.as_str()).collect();
        let reported = self.waiting_processes.iter().map(|process| process.node.as_str());
        let unlisted = self.waiter_count.saturating_sub(self.waiters.len() as u64);
        let not_queued = reported.filter(|node| !queued.contains(node)).count();
        (queued.len() + not_queued) as u64 + unlisted
    }
}

impl WaitingProcess {
    /// Returns those of the reports about a lock, the longest wait first.
    fn list(key: &Key, fleet: &FleetReport) -> Vec<Self> {
        let lock = key.operator_name();
        let waiting = fleet.processes.iter().filter_map(|process| {
            let wait = process.waits.iter().find(|wait| wait.lock == *lock)?;
            Some(Self {
                node: process.node.clone(),
                host: process.host.clone(),
                pid: process.pid,
                waiters: wait.waiters,
                longest: Duration::from_millis(wait.longest_ms),
            })
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|process| Reverse(process.longest));
        waiting
    }
}

impl LockHolder {
    fn new(holder: &SnapshotHolder, fleet: &FleetReport) -> Self {
        let (token, is_offer) = match &holder.kind {
            HolderKind::Holder(token) => (Some(token), false),
            HolderKind::OfferToWaiter(token) => (Some(token), true),
            HolderKind::OfferToJob(_) => (None, true),
        };
        let node = token.map_or("", LockToken::node);
        let process = fleet.process(node);
        let hold = process.zip(token.filter(|_| !is_offer));
        let hold = hold.and_then(|(process, token)| process.hold_under(token));
        Self {
            mode: holder.mode,
            node: node.to_owned(),
            host: process.map(|process| process.host.clone()),
            pid: process.map(|process| process.pid),
            held: hold.map(|hold| Duration::from_millis(hold.held_ms)),
            fence: hold.map(|hold| hold.fence),
            lease_left: holder.remaining,
            is_run: hold.map(|hold| hold.is_run),
            route: hold.and_then(|hold| hold.route.clone()),
            is_offer,
        }
    }
}

impl fmt::Display for LockInspection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.lock)?;
        match &self.holders[..] {
            [] => formatter.write_str(" is free")?,
            [holder, others @ ..] => {
                write!(formatter, " is {holder}")?;
                if !others.is_empty() {
                    write!(formatter, ", and {} others", others.len())?;
                }
            }
        }
        match self.waiting_process_count() {
            1 => formatter.write_str("; 1 process waits")?,
            count => write!(formatter, "; {count} processes wait")?,
        }
        match self.waiting_processes.iter().map(|process| process.waiters).sum() {
            0_u64 => {}
            1 => formatter.write_str(" with 1 request")?,
            count => write!(formatter, " with {count} requests")?,
        }
        match self.job_count {
            0 => Ok(()),
            1 => formatter.write_str(", 1 deferred request"),
            count => write!(formatter, ", {count} deferred requests"),
        }
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_offer { "offered to " } else { "held by " })?;
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => write!(formatter, "{host} (pid {pid})")?,
            _ if self.node.is_empty() => formatter.write_str("a deferred request")?,
            _ => write!(formatter, "process {}, which does not answer", self.node)?,
        }
        if let Some(route) = &self.route {
            write!(formatter, " in {route}")?;
        }
        if let Some(held) = self.held {
            write!(formatter, " for {:.1} s", held.as_secs_f64())?;
        }
        if let Some(fence) = self.fence {
            write!(formatter, ", fence {fence}")?;
        }
        write!(formatter, ", lease {:.1} s left", self.lease_left.as_secs_f64())
    }
}
