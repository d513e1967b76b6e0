//! `DeferredHistory`: the merged records of the clients and handlers of a test run.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Deref,
};

use super::{
    check::{self, DeferredCheckStats},
    deferred_records::{
        AcceptedJob, ClientExchange, ObservedStatus, ProcessDisturbance, RecordedRun,
    },
    run_event,
};
use crate::{ProcessIncarnation, Violation, locks::FencedRegister};

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
    pub fn add_log(&mut self, incarnation: ProcessIncarnation, text: &str) {
        self.runs.extend(run_event::parse_runs(incarnation, text));
        self.stalls.extend(run_event::parse_stalls(incarnation, text));
    }

    /// Checks D1, D2, D3 and D4, M1, M2 and M3 of the runs, and L1 of the clients.
    #[must_use]
    pub fn check(&self) -> (DeferredCheckStats, Vec<Violation>) {
        check::check_history(self)
    }

    /// Returns the time at which the run was certainly over.
    pub(super) fn end_of_run(&self, run: &RecordedRun) -> u64 {
        let killed_at = self.killed_at.get(&run.incarnation).copied();
        let ends =
            [run.end.as_ref().map(|end| end.ended_at), run.aborted_at, run.dropped_at, killed_at];
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
        let ended_without_lock =
            run.end.as_ref().is_some_and(|end| end.ended_at >= run.valid_until);
        let was_killed =
            self.killed_at.get(&run.incarnation).is_some_and(|at| (from..=to).contains(at));
        run.aborted_at.is_some()
            || ended_without_lock
            || was_killed
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
        incarnation: Option<ProcessIncarnation>,
        from: u64,
        to: u64,
    ) -> bool {
        let Some(incarnation) = incarnation else { return true };
        let process_ends =
            [self.killed_at.get(&incarnation), self.stop_requested_at.get(&incarnation)];
        process_ends.into_iter().flatten().any(|at| *at <= to)
            || overlaps(&self.disturbances, incarnation, from, to)
    }

    /// Returns true if the machine stalled this process, or all of them, within this period.
    pub(super) fn was_stalled(
        &self,
        incarnation: Option<ProcessIncarnation>,
        from: u64,
        to: u64,
    ) -> bool {
        incarnation.is_some_and(|incarnation| overlaps(&self.stalls, incarnation, from, to))
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
        let lines =
            runs.into_iter().map(|run| format!("\n  {}", RunDisplay { history: self, run }));
        lines.collect()
    }
}

fn overlaps(
    disturbances: &[ProcessDisturbance],
    incarnation: ProcessIncarnation,
    from: u64,
    to: u64,
) -> bool {
    disturbances.iter().any(|disturbance| {
        let concerns_process = disturbance.incarnation.is_none_or(|i| i == incarnation);
        concerns_process && disturbance.from < to && from < disturbance.to
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

/// Run as a line of a violation.
struct RunDisplay<'a> {
    history: &'a DeferredHistory,
    run: &'a RecordedRun,
}

impl fmt::Display for RunDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { history, run } = self;
        let ProcessIncarnation { process, generation } = run.incarnation;
        let RecordedRun { resource, attempt, fence, .. } = run;
        let job =
            run.job_id.as_deref().map_or_else(|| "direct run".to_owned(), |id| format!("job {id}"));
        write!(f, "process {process}.{generation}, resource {resource}, {job}")?;
        write!(f, ", attempt {attempt}, fence {fence}, started at {} us", run.started_at / 1000)?;
        write!(f, ", valid until {} us", run.valid_until / 1000)?;
        match &run.end {
            Some(end) => write!(f, ", ended at {} us with {}", end.ended_at / 1000, end.status)?,
            None => f.write_str(", not ended")?,
        }
        let interruptions = [
            ("process aborted", run.aborted_at),
            ("run dropped", run.dropped_at),
            ("process killed", history.killed_at.get(&run.incarnation).copied()),
        ];
        for (interruption, at) in interruptions {
            if let Some(at) = at {
                write!(f, ", {interruption} at {} us", at / 1000)?;
            }
        }
        Ok(())
    }
}
