//! `DeferredHistory`, the merged records of the clients and handlers of a test run.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Deref,
};

use super::{
    check::{self, DeferredCheckStats},
    run_event,
};
use crate::{ProcessIncarnation, Violation, locks::FencedRegister};

/// Terms under which a request was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedTerms {
    /// True if it may run again after a crash (PUT, DELETE).
    pub retry_after_crash: bool,
    /// Most runs that are charged.
    pub max_runs: u32,
    /// True if later requests may overtake it while it waits for a retry.
    pub allows_overtaking: bool,
    /// True if its order is not checked, since it was delayed or redriven.
    pub is_unordered: bool,
}

impl AcceptedTerms {
    /// Terms of a POST: one run, in order.
    pub const SINGLE_RUN: Self = Self {
        retry_after_crash: false,
        max_runs: 1,
        allows_overtaking: false,
        is_unordered: false,
    };

    /// Terms of a PUT or DELETE: several runs, for which later requests wait.
    #[must_use]
    pub fn retryable(most: u32) -> Self {
        Self { retry_after_crash: true, max_runs: most, ..Self::SINGLE_RUN }
    }
}

/// A 202 in the client's log.
#[derive(Debug, Clone)]
pub struct AcceptedJob {
    /// The id in its `Location`.
    pub id: String,
    /// Resource of the request.
    pub resource: String,
    /// Time in ns at which the client began to send the request.
    pub sent_at: u64,
    /// Time in ns at which the client had the response.
    pub answered_at: u64,
    /// Terms of the request.
    pub terms: AcceptedTerms,
    /// False for a 503 with a `Location`, after which the request may have been stored or not.
    pub is_certain: bool,
}

/// A request and its response in the client's log.
#[derive(Debug, Clone)]
pub struct ClientExchange {
    /// Resource of the request.
    pub resource: String,
    /// Process that received the request; `None` if it is unknown.
    pub incarnation: Option<ProcessIncarnation>,
    /// Time in ns at which the client began to send the request.
    pub sent_at: u64,
    /// Time in ns at which the client had the response, or knew that there will be none.
    pub answered_at: u64,
    /// Response to the client.
    pub answer: ClientAnswer,
}

/// Response to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAnswer {
    /// 202; the details are in [`AcceptedJob`].
    Accepted,
    /// 503 with a `Location`: the request may have been stored.
    PossiblyAccepted,
    /// Status and body of any other response.
    Response(u16, String),
    /// The connection ended without a response.
    NoResponse,
}

/// A run in its handler's log.
#[derive(Debug, Clone)]
pub struct RecordedRun {
    /// Process of the run.
    pub incarnation: ProcessIncarnation,
    /// Resource of the lock that it ran under.
    pub resource: String,
    /// Job of the run; `None` for a request that ran directly.
    pub job_id: Option<String>,
    /// Number of the attempt, from 1; 0 for a request that ran directly.
    pub attempt: u32,
    /// Fence of its lock.
    pub fence: u64,
    /// Start in ns.
    pub started_at: u64,
    /// Last known end of the validity time of its lock in ns.
    pub valid_until: u64,
    /// End of the run, if it ended.
    pub end: Option<RunEnd>,
    /// Time at which it aborted its own process.
    pub aborted_at: Option<u64>,
    /// Time at which it was dropped, because its lock was lost or its worker was stopped.
    pub dropped_at: Option<u64>,
}

/// End of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// Time of the end in ns.
    pub ended_at: u64,
    /// Status of the response.
    pub status: u16,
    /// Body of the response, one word.
    pub body: String,
}

impl RunEnd {
    /// Returns true if the worker classifies the response as a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !matches!(self.status, 401 | 403 | 408 | 425 | 429 | 500..=599)
    }
}

/// One response of the status resource about a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedStatus {
    /// `done`, `dead`, `cancelled` or `expired`, or a pending state. Empty if there is no such job.
    pub state: String,
    /// Reason of the state.
    pub reason: String,
    /// Status and body of the stored response.
    pub response: Option<(u16, String)>,
}

impl ObservedStatus {
    /// Returns true if the state does not change any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(&*self.state, "done" | "dead" | "cancelled" | "expired")
    }
}

/// Period in which a process, or all of them, were disturbed.
#[derive(Debug, Clone, Copy)]
pub struct ProcessDisturbance {
    /// Disturbed process; `None` for all of them.
    pub incarnation: Option<ProcessIncarnation>,
    /// Start in ns.
    pub from: u64,
    /// End in ns, including the time for the recovery.
    pub to: u64,
}

/// Merged records of a test run.
#[derive(Debug, Default)]
pub struct DeferredHistory {
    /// Accepted requests in the client's log.
    pub accepted: Vec<AcceptedJob>,
    /// Runs in the handlers' logs.
    pub runs: Vec<RecordedRun>,
    /// Statuses of each job, in the order in which they were read.
    pub observed_statuses: BTreeMap<String, Vec<ObservedStatus>>,
    /// Time at which each process was killed, or shortly before.
    pub killed_at: HashMap<ProcessIncarnation, u64>,
    /// Processes that got a stop signal.
    pub drained: BTreeSet<ProcessIncarnation>,
    /// Disturbances that the test caused.
    pub disturbances: Vec<ProcessDisturbance>,
    /// Periods in which the machine stalled a process, or all of them. They have the same effects
    /// as a disturbance, but the test did not cause them.
    pub stalls: Vec<ProcessDisturbance>,
    /// Time of the stop signal of each process.
    pub stop_requested_at: HashMap<ProcessIncarnation, u64>,
    /// Number of unanswered requests for each resource, which may have been stored.
    pub unanswered_counts: BTreeMap<String, usize>,
    /// Registers of resources that check fences. Each run reads the register of its resource at its
    /// start, and writes it at its end.
    pub registers: Vec<FencedRegister>,
    /// All responses to clients, if all clients have logged them.
    pub exchanges: Vec<ClientExchange>,
    /// Longest time in ns that a client waits for its response if the processes that it asks are
    /// not disturbed. By then it is served, accepted, or refused because its resource is busy. Zero
    /// skips the check.
    pub max_wait: u64,
}

impl DeferredHistory {
    /// Adds the runs and the stalls in the log of one process; an incomplete last line is ignored.
    pub fn add_log(&mut self, life: ProcessIncarnation, text: &str) {
        self.runs.extend(run_event::parse_runs(life, text));
        self.stalls.extend(run_event::parse_stalls(life, text));
    }

    /// Checks D1, D2, D3 and D4, M1, M2 and M3 of the runs, and L1 of the clients.
    #[must_use]
    pub fn check(&self) -> (DeferredCheckStats, Vec<Violation>) {
        check::check_history(self)
    }

    /// Returns the time at which the run was certainly over.
    pub(super) fn end_of_run(&self, run: &RecordedRun) -> u64 {
        let killed = self.killed_at.get(&run.incarnation).copied();
        let ends =
            [run.end.as_ref().map(|end| end.ended_at), run.aborted_at, run.dropped_at, killed];
        ends.into_iter().flatten().fold(run.valid_until, u64::min)
    }

    /// Returns true if the outcome of a run may be due to a disturbance or to a stall.
    pub(super) fn is_disturbed(&self, run: &RecordedRun) -> bool {
        let (from, to) = self.vulnerable_period(run);
        self.is_faulted(run) || overlaps(&self.stalls, run.incarnation, from, to)
    }

    /// Returns true if the outcome of a run may be due to a disturbance that the test caused.
    pub(super) fn is_faulted(&self, run: &RecordedRun) -> bool {
        let (from, to) = self.vulnerable_period(run);
        // A run that ends without its lock cannot be settled.
        let late = run.end.as_ref().is_some_and(|end| end.ended_at >= run.valid_until);
        let killed =
            self.killed_at.get(&run.incarnation).is_some_and(|at| (from..=to).contains(at));
        run.aborted_at.is_some()
            || late
            || killed
            || overlaps(&self.disturbances, run.incarnation, from, to)
    }

    /// Returns the period from the start of a run until the store has certainly learned of its end.
    fn vulnerable_period(&self, run: &RecordedRun) -> (u64, u64) {
        const SETTLE_GRACE_NANOS: u64 = 1_000_000_000;
        // While the lock is valid, the worker retries to settle the run.
        let to = run
            .end
            .as_ref()
            .map_or(u64::MAX, |end| run.valid_until.max(end.ended_at + SETTLE_GRACE_NANOS));
        (run.started_at, to)
    }

    /// Returns true if a process, or all of them, were disturbed within this period.
    pub(super) fn is_process_disturbed(
        &self,
        life: Option<ProcessIncarnation>,
        from: u64,
        to: u64,
    ) -> bool {
        let Some(life) = life else { return true };
        let ended = [self.killed_at.get(&life), self.stop_requested_at.get(&life)];
        ended.into_iter().flatten().any(|at| *at <= to)
            || overlaps(&self.disturbances, life, from, to)
    }

    /// Returns true if the machine stalled this process, or all of them, within this period.
    pub(super) fn was_stalled(&self, life: Option<ProcessIncarnation>, from: u64, to: u64) -> bool {
        life.is_some_and(|life| overlaps(&self.stalls, life, from, to))
    }

    pub(super) fn resources(&self) -> BTreeSet<&str> {
        let accepted = self.accepted.iter().map(|accepted| &*accepted.resource);
        accepted.chain(self.runs.iter().map(|run| &*run.resource)).collect()
    }

    /// Formats runs, one line each.
    pub(super) fn format_runs<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a RecordedRun>,
    ) -> String {
        runs.into_iter().map(|run| format!("\n  {}", RunDisplay(self, run))).collect()
    }
}

fn overlaps(troubles: &[ProcessDisturbance], life: ProcessIncarnation, from: u64, to: u64) -> bool {
    troubles.iter().any(|trouble| {
        let about = trouble.incarnation.is_none_or(|of| of == life);
        about && trouble.from < to && from < trouble.to
    })
}

/// A history with an index of the runs of each job.
pub(super) struct JobRunIndex<'a> {
    history: &'a DeferredHistory,
    runs_by_job: HashMap<&'a str, Vec<&'a RecordedRun>>,
}

impl<'a> JobRunIndex<'a> {
    pub(super) fn new(history: &'a DeferredHistory) -> Self {
        let mut runs: HashMap<_, Vec<_>> = HashMap::new();
        for run in &history.runs {
            if let Some(id) = &run.job_id {
                runs.entry(&**id).or_default().push(run);
            }
        }
        runs.values_mut().for_each(|runs| runs.sort_by_key(|run| run.started_at));
        Self { history, runs_by_job: runs }
    }

    /// Returns the runs of a job, in the order of their start.
    pub(super) fn runs_of(&self, id: &str) -> &[&'a RecordedRun] {
        self.runs_by_job.get(id).map_or(&[], Vec::as_slice)
    }
}

impl Deref for JobRunIndex<'_> {
    type Target = DeferredHistory;

    fn deref(&self) -> &DeferredHistory {
        self.history
    }
}

struct RunDisplay<'a>(&'a DeferredHistory, &'a RecordedRun);

impl fmt::Display for RunDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(history, run) = self;
        let ProcessIncarnation { process, generation: number } = run.incarnation;
        let job = run.job_id.as_deref().unwrap_or("at once");
        write!(f, "process {process}.{number} {} {job}", run.resource)?;
        write!(f, " attempt {} fence {}", run.attempt, run.fence)?;
        write!(f, " from {} sure until {}", run.started_at / 1000, run.valid_until / 1000)?;
        match &run.end {
            Some(end) => write!(f, " ended {} with {}", end.ended_at / 1000, end.status)?,
            None => f.write_str(" did not end")?,
        }
        for (what, at) in [("aborted", run.aborted_at), ("given up", run.dropped_at)] {
            if let Some(at) = at {
                write!(f, " {what} {}", at / 1000)?;
            }
        }
        match history.killed_at.get(&run.incarnation) {
            Some(at) => write!(f, " killed {}", at / 1000),
            None => Ok(()),
        }
    }
}
