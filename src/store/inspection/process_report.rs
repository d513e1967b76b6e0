//! [`ProcessReport`]: reply of a process to an inquiry of an operator.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::wait_report::WaitReport;
use crate::{
    durations::saturating_millis,
    instruments::{PolicyReport, StoreStats},
    key::Key,
    store::{Store, hold_state::HoldState, lock_token::LockToken},
};

/// Most holds in a report: the longest ones.
const MAX_HOLDS: usize = 200;

/// What a process does with a store, by its own account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessReport {
    /// Id of the store handle; another one at each start of the process.
    pub node: String,
    /// Name of the host.
    pub host: String,
    /// Process id on its host.
    pub pid: u32,
    /// Version of the library.
    pub version: String,
    /// Time since the process first answered or used a store, in milliseconds.
    pub uptime_ms: u64,
    /// Longest holds, at most 200; if the inquiry was about one lock, those of that lock.
    pub holds: Vec<HoldReport>,
    /// Number of locks that the process holds.
    pub hold_count: u64,
    /// Locks with the longest waits in the process, at most 20; if the inquiry was about one lock,
    /// that one. None of a process with an older version.
    #[serde(default)]
    pub waits: Vec<WaitReport>,
    /// True while an operator has [drained](crate::admin::Admin::drain_process) the process: its
    /// workers finish what runs, and start nothing.
    #[serde(default)]
    pub draining: bool,
    /// Workers of the process.
    pub workers: Vec<WorkerReport>,
    /// Policies of its rate limits by name, at most 256; none if the inquiry was about one lock,
    /// and of a process with an older version.
    #[serde(default)]
    pub policies: Vec<PolicyReport>,
    /// What the process has done so far.
    pub stats: StoreStats,
}

/// A lock that a process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HoldReport {
    /// Digest that tells the holds of one process apart: twelve digits. It allows nothing, unlike
    /// the token of the hold. Empty in reports of older versions.
    #[serde(default)]
    pub id: String,
    /// Name of the lock, as in [`Key::operator_name`].
    pub lock: String,
    /// `exclusive`, `shared` or `permits`.
    pub mode: String,
    /// Fence of the hold.
    pub fence: u64,
    /// Time for which the lock was held so far, in milliseconds.
    pub held_ms: u64,
    /// Time until the lease ends unless it is renewed, in milliseconds.
    pub lease_left_ms: u64,
    /// True if a deferred request runs under the lock.
    pub is_run: bool,
    /// Method and route pattern of the request under the lock, such as `POST /orders/{id}`. `None`
    /// if code has taken the lock, or if the layer found no pattern.
    pub route: Option<String>,
}

/// A worker of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Name of its task queue; `None` for deferred requests.
    pub queue: Option<String>,
    /// Number of runs that it executes at the same time.
    pub slots: usize,
    /// Number of runs at the moment.
    pub busy: usize,
}

impl ProcessReport {
    /// Creates the report of this process, about one lock or about all.
    pub(crate) fn of(store: &Store, lock: Option<&Key>) -> Self {
        let mut holds = store.agent().holds();
        let hold_count = holds.len() as u64;
        holds.retain(|hold| lock.is_none_or(|lock| lock == hold.key()));
        // Chosen before they are sorted and named: a process may hold 100,000 locks.
        if holds.len() > MAX_HOLDS {
            holds.select_nth_unstable_by_key(MAX_HOLDS, |hold| hold.held_since);
            holds.truncate(MAX_HOLDS);
        }
        holds.sort_unstable_by_key(|hold| hold.held_since);
        let workers = store.counters().workers();
        let workers = workers.iter().map(|worker| WorkerReport {
            queue: worker.queue.clone(),
            slots: worker.slots,
            busy: worker.busy(),
        });
        Self {
            node: store.node().to_string(),
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: saturating_millis(uptime()),
            holds: holds.iter().map(|hold| HoldReport::of(hold)).collect(),
            hold_count,
            waits: store.wakeups().longest_waits(lock),
            draining: store.is_drained(),
            workers: workers.collect(),
            policies: lock.map_or_else(|| store.counters().policies().report(), |_| Vec::new()),
            stats: store.stats(),
        }
    }

    /// Returns the hold under this token, from a report about its lock. An older version does not
    /// tell its holds apart, so it is the longest one.
    pub(crate) fn hold_under(&self, token: &LockToken) -> Option<&HoldReport> {
        let id = token.digest();
        self.holds.iter().find(|hold| hold.id == id || hold.id.is_empty())
    }
}

impl HoldReport {
    fn of(hold: &HoldState) -> Self {
        let now = tokio::time::Instant::now();
        Self {
            id: hold.lease.token.digest(),
            lock: hold.key().operator_name().into_owned(),
            mode: hold.lease.terms.mode.name().to_owned(),
            fence: hold.fence,
            held_ms: saturating_millis(now.saturating_duration_since(hold.held_since)),
            lease_left_ms: saturating_millis(
                hold.lease.valid_until().saturating_duration_since(now),
            ),
            is_run: hold.lease.terms.job.is_some(),
            route: hold.route().map(|route| route.as_str().to_owned()),
        }
    }
}

/// Returns the time since the first call, which the first use of a store makes.
pub(crate) fn uptime() -> Duration {
    static STARTED_AT: OnceLock<Instant> = OnceLock::new();
    STARTED_AT.get_or_init(Instant::now).elapsed()
}
