//! What is known of all requests and runs, put together from what client and handlers wrote down.

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

/// What was promised for a request when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedTerms {
    /// It may run again after a crash (PUT, DELETE).
    pub retry_after_crash: bool,
    /// Most runs that are charged.
    pub max_runs: u32,
    /// While it waits for a retry, later ones pass it.
    pub allows_overtaking: bool,
    /// Its place in the order is not judged: it was delayed, or put back by hand.
    pub is_unordered: bool,
}

impl AcceptedTerms {
    /// Of a POST: one run, in its turn.
    pub const SINGLE_RUN: Self = Self {
        retry_after_crash: false,
        max_runs: 1,
        allows_overtaking: false,
        is_unordered: false,
    };

    /// Of a PUT or DELETE: up to so many runs, and later ones wait for them.
    #[must_use]
    pub fn retryable(most: u32) -> Self {
        Self { retry_after_crash: true, max_runs: most, ..Self::SINGLE_RUN }
    }
}

/// A line of the client's log: a 202.
#[derive(Debug, Clone)]
pub struct AcceptedJob {
    /// The id in its `Location`.
    pub id: String,
    /// Whose line it stands in.
    pub resource: String,
    /// When the client began to send it, ns.
    pub sent_at: u64,
    /// When it had the answer, ns.
    pub answered_at: u64,
    /// What holds for it.
    pub terms: AcceptedTerms,
    /// False: 503 with a `Location`, so it may have been stored or not.
    pub is_certain: bool,
}

/// A line of the client's log: what it was told.
#[derive(Debug, Clone)]
pub struct ClientExchange {
    /// Whose lock or line it was about.
    pub resource: String,
    /// Who was asked; `None`: a process that is not known.
    pub incarnation: Option<ProcessIncarnation>,
    /// When the client began to send it, ns.
    pub sent_at: u64,
    /// When it had the answer, or knew that there will be none, ns.
    pub answered_at: u64,
    /// The answer.
    pub answer: ClientAnswer,
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAnswer {
    /// 202: more of it is in [`Accepted`].
    Accepted,
    /// 503 with a `Location`: it may have been stored.
    PossiblyAccepted,
    /// Status and body of any other answer.
    Response(u16, String),
    /// The connection ended without one.
    NoResponse,
}

/// A run, as its handler wrote it down.
#[derive(Debug, Clone)]
pub struct RecordedRun {
    /// The process.
    pub incarnation: ProcessIncarnation,
    /// Whose lock it ran under.
    pub resource: String,
    /// `None`: a request that ran at once.
    pub job_id: Option<String>,
    /// From 1; 0 for one that ran at once.
    pub attempt: u32,
    /// Of its lock.
    pub fence: u64,
    /// When it began, ns.
    pub started_at: u64,
    /// Until when it was sure of its lock, as it last knew, ns.
    pub valid_until: u64,
    /// When it ended, if it did.
    pub end: Option<RunEnd>,
    /// It ended its own process then.
    pub aborted_at: Option<u64>,
    /// It was given up then: its lock was lost, its worker told to stop.
    pub dropped_at: Option<u64>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// When, ns.
    pub ended_at: u64,
    /// What it answered.
    pub status: u16,
    /// Of one word.
    pub body: String,
}

impl RunEnd {
    /// As the worker judges it.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !matches!(self.status, 401 | 403 | 408 | 425 | 429 | 500..=599)
    }
}

/// What the status resource said of a job once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedStatus {
    /// `done`, `dead`, `cancelled`, `expired`; or what it still waits for. Empty: there is no such job.
    pub state: String,
    /// Why.
    pub reason: String,
    /// Status and body of the stored response.
    pub response: Option<(u16, String)>,
}

impl ObservedStatus {
    /// Whether it stays so.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(&*self.state, "done" | "dead" | "cancelled" | "expired")
    }
}

/// A time in which something was done to a process, or to all of them.
#[derive(Debug, Clone, Copy)]
pub struct ProcessDisturbance {
    /// `None`: to all.
    pub incarnation: Option<ProcessIncarnation>,
    /// From then, ns.
    pub from: u64,
    /// Until then, with what it takes to get over it.
    pub to: u64,
}

/// All that was written down.
#[derive(Debug, Default)]
pub struct DeferredHistory {
    /// The client's log.
    pub accepted: Vec<AcceptedJob>,
    /// The handlers' logs.
    pub runs: Vec<RecordedRun>,
    /// What was said of each id, in the order it was asked.
    pub observed: BTreeMap<String, Vec<ObservedStatus>>,
    /// When each process was ended, or a moment before.
    pub killed_at: HashMap<ProcessIncarnation, u64>,
    /// Those that were told to stop.
    pub drained: BTreeSet<ProcessIncarnation>,
    /// What was done to them.
    pub disturbances: Vec<ProcessDisturbance>,
    /// When the machine had no time for a process, or for all of them: nobody did that to them, but it has the same
    /// traces.
    pub stalls: Vec<ProcessDisturbance>,
    /// When each process that was told to stop was.
    pub stop_requested_at: HashMap<ProcessIncarnation, u64>,
    /// Requests of each resource that were sent and not answered: they may have been stored.
    pub unanswered: BTreeMap<String, usize>,
    /// Registers of resources that look at fences: each run reads its resource's when it begins, and writes when it ends.
    pub registers: Vec<FencedRegister>,
    /// All that clients were told, if all of them have written it down.
    pub exchanges: Vec<ClientExchange>,
    /// How long a client waits for its answer at most if nothing is done to those it asks, ns. Then it is served, accepted
    /// or refused because its resource is busy. Zero: not judged.
    pub max_wait: u64,
}

impl DeferredHistory {
    /// Adds the runs that one process has written down, and where it stood still; a last line without its end is
    /// left out.
    pub fn add_log(&mut self, life: ProcessIncarnation, text: &str) {
        self.runs.extend(run_event::parse_runs(life, text));
        self.stalls.extend(run_event::parse_stalls(life, text));
    }

    /// D1, D2, D3 and D4, and M1 and M2 of the runs of each resource.
    #[must_use]
    pub fn check(&self) -> (DeferredCheckStats, Vec<Violation>) {
        check::check_history(self)
    }

    /// When the run was over, as far as anybody can say.
    pub(super) fn end_of_run(&self, run: &RecordedRun) -> u64 {
        let killed = self.killed_at.get(&run.incarnation).copied();
        let ends =
            [run.end.as_ref().map(|end| end.ended_at), run.aborted_at, run.dropped_at, killed];
        ends.into_iter().flatten().fold(run.valid_until, u64::min)
    }

    /// Whether what became of a run may be due to something that was done to it, or to the machine.
    pub(super) fn is_disturbed(&self, run: &RecordedRun) -> bool {
        let (from, to) = self.judged_span(run);
        self.is_disturbed_on_purpose(run) || overlaps(&self.stalls, run.incarnation, from, to)
    }

    /// Whether it may be due to something that was done to it on purpose.
    pub(super) fn is_disturbed_on_purpose(&self, run: &RecordedRun) -> bool {
        let (from, to) = self.judged_span(run);
        // Who ends without its lock is not heard.
        let late = run.end.as_ref().is_some_and(|end| end.ended_at >= run.valid_until);
        let killed =
            self.killed_at.get(&run.incarnation).is_some_and(|at| (from..=to).contains(at));
        run.aborted_at.is_some()
            || late
            || killed
            || overlaps(&self.disturbances, run.incarnation, from, to)
    }

    /// From its start until the store has surely heard of its end.
    fn judged_span(&self, run: &RecordedRun) -> (u64, u64) {
        const SETTLE_GRACE_NANOS: u64 = 1_000_000_000;
        // While it is sure of its lock, its worker tells the store again and again that it has ended.
        let to = run
            .end
            .as_ref()
            .map_or(u64::MAX, |end| run.valid_until.max(end.ended_at + SETTLE_GRACE_NANOS));
        (run.started_at, to)
    }

    /// Whether anything was done in this time to a process, or to all.
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

    /// Whether the machine had no time in it for a process, or for all.
    pub(super) fn was_stalled(&self, life: Option<ProcessIncarnation>, from: u64, to: u64) -> bool {
        life.is_some_and(|life| overlaps(&self.stalls, life, from, to))
    }

    pub(super) fn resources(&self) -> BTreeSet<&str> {
        let accepted = self.accepted.iter().map(|accepted| &*accepted.resource);
        accepted.chain(self.runs.iter().map(|run| &*run.resource)).collect()
    }

    /// Runs a line each, for who has to find out.
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

/// A history, and which runs are whose.
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

    /// The runs of a job, in the order they began.
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
