//! What is known of all requests and runs, put together from what client and handlers wrote down.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Deref,
};

use super::{
    check::{self, Looked},
    event,
};
use crate::{Life, Violation, locks::Register};

/// What was promised for a request when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// It may run again after a crash (PUT, DELETE).
    pub again: bool,
    /// Most runs that are charged.
    pub most: u32,
    /// While it waits for a retry, later ones pass it.
    pub skips: bool,
    /// Its place in the order is not judged: it was delayed, or put back by hand.
    pub unordered: bool,
}

impl Terms {
    /// Of a POST: one run, in its turn.
    pub const ONCE: Self = Self { again: false, most: 1, skips: false, unordered: false };

    /// Of a PUT or DELETE: up to so many runs, and later ones wait for them.
    #[must_use]
    pub fn again(most: u32) -> Self {
        Self { again: true, most, ..Self::ONCE }
    }
}

/// A line of the client's log: a 202.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// The id in its `Location`.
    pub id: String,
    /// Whose line it stands in.
    pub resource: String,
    /// When the client began to send it, ns.
    pub sent: u64,
    /// When it had the answer, ns.
    pub told: u64,
    /// What holds for it.
    pub terms: Terms,
    /// False: 503 with a `Location`, so it may have been stored or not.
    pub sure: bool,
}

/// A line of the client's log: what it was told.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Whose lock or line it was about.
    pub resource: String,
    /// Who was asked; `None`: a process that is not known.
    pub life: Option<Life>,
    /// When the client began to send it, ns.
    pub sent: u64,
    /// When it had the answer, or knew that there will be none, ns.
    pub told: u64,
    /// The answer.
    pub answer: Answer,
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 202: more of it is in [`Accepted`].
    Accepted,
    /// 503 with a `Location`: it may have been stored.
    Perhaps,
    /// Status and body of any other answer.
    Given(u16, String),
    /// The connection ended without one.
    Nothing,
}

/// A run, as its handler wrote it down.
#[derive(Debug, Clone)]
pub struct Run {
    /// The process.
    pub life: Life,
    /// Whose lock it ran under.
    pub resource: String,
    /// `None`: a request that ran at once.
    pub job: Option<String>,
    /// From 1; 0 for one that ran at once.
    pub attempt: u32,
    /// Of its lock.
    pub fence: u64,
    /// When it began, ns.
    pub from: u64,
    /// Until when it was sure of its lock, as it last knew, ns.
    pub valid: u64,
    /// When it ended, if it did.
    pub end: Option<End>,
    /// It ended its own process then.
    pub aborted: Option<u64>,
    /// It was given up then: its lock was lost, its worker told to stop.
    pub dropped: Option<u64>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When, ns.
    pub at: u64,
    /// What it answered.
    pub status: u16,
    /// Of one word.
    pub body: String,
}

impl End {
    /// As the worker judges it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        !matches!(self.status, 401 | 403 | 408 | 425 | 429 | 500..=599)
    }
}

/// What the status resource said of a job once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// `done`, `dead`, `cancelled`, `expired`; or what it still waits for. Empty: there is no such job.
    pub state: String,
    /// Why.
    pub reason: String,
    /// Status and body of the stored response.
    pub response: Option<(u16, String)>,
}

impl Seen {
    /// Whether it stays so.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(&*self.state, "done" | "dead" | "cancelled" | "expired")
    }
}

/// A time in which something was done to a process, or to all of them.
#[derive(Debug, Clone, Copy)]
pub struct Trouble {
    /// `None`: to all.
    pub life: Option<Life>,
    /// From then, ns.
    pub from: u64,
    /// Until then, with what it takes to get over it.
    pub to: u64,
}

/// All that was written down.
#[derive(Debug, Default)]
pub struct History {
    /// The client's log.
    pub accepted: Vec<Accepted>,
    /// The handlers' logs.
    pub runs: Vec<Run>,
    /// What was said of each id, in the order it was asked.
    pub seen: BTreeMap<String, Vec<Seen>>,
    /// When each process was ended, or a moment before.
    pub killed: HashMap<Life, u64>,
    /// Those that were told to stop.
    pub drained: BTreeSet<Life>,
    /// What was done to them.
    pub troubles: Vec<Trouble>,
    /// When the machine had no time for a process, or for all of them: nobody did that to them, but it has the same
    /// traces.
    pub stalls: Vec<Trouble>,
    /// When each process that was told to stop was.
    pub stopping: HashMap<Life, u64>,
    /// Requests of each resource that were sent and not answered: they may have been stored.
    pub unanswered: BTreeMap<String, usize>,
    /// Registers of resources that look at fences: each run reads its resource's when it begins, and writes when it ends.
    pub registers: Vec<Register>,
    /// All that clients were told, if all of them have written it down.
    pub asked: Vec<Asked>,
    /// How long a client waits for its answer at most if nothing is done to those it asks, ns. Then it is served, accepted
    /// or refused because its resource is busy. Zero: not judged.
    pub patience: u64,
}

impl History {
    /// Adds the runs that one process has written down, and where it stood still; a last line without its end is
    /// left out.
    pub fn read(&mut self, life: Life, text: &str) {
        self.runs.extend(event::runs(life, text));
        self.stalls.extend(event::stalls(life, text));
    }

    /// D1, D2, D3 and D4, and M1 and M2 of the runs of each resource.
    #[must_use]
    pub fn check(&self) -> (Looked, Vec<Violation>) {
        check::check(self)
    }

    /// When the run was over, as far as anybody can say.
    pub(super) fn over(&self, run: &Run) -> u64 {
        let killed = self.killed.get(&run.life).copied();
        let ends = [run.end.as_ref().map(|end| end.at), run.aborted, run.dropped, killed];
        ends.into_iter().flatten().fold(run.valid, u64::min)
    }

    /// Whether what became of a run may be due to something that was done to it, or to the machine.
    pub(super) fn is_touched(&self, run: &Run) -> bool {
        let (from, to) = self.span(run);
        self.is_struck(run) || meets(&self.stalls, run.life, from, to)
    }

    /// Whether it may be due to something that was done to it on purpose.
    pub(super) fn is_struck(&self, run: &Run) -> bool {
        let (from, to) = self.span(run);
        // Who ends without its lock is not heard.
        let late = run.end.as_ref().is_some_and(|end| end.at >= run.valid);
        let killed = self.killed.get(&run.life).is_some_and(|at| (from..=to).contains(at));
        run.aborted.is_some() || late || killed || meets(&self.troubles, run.life, from, to)
    }

    /// From its start until the store has surely heard of its end.
    fn span(&self, run: &Run) -> (u64, u64) {
        const SETTLED: u64 = 1_000_000_000;
        // While it is sure of its lock, its worker tells the store again and again that it has ended.
        let to = run.end.as_ref().map_or(u64::MAX, |end| run.valid.max(end.at + SETTLED));
        (run.from, to)
    }

    /// Whether anything was done in this time to a process, or to all.
    pub(super) fn is_troubled(&self, life: Option<Life>, from: u64, to: u64) -> bool {
        let Some(life) = life else { return true };
        let ended = [self.killed.get(&life), self.stopping.get(&life)];
        ended.into_iter().flatten().any(|at| *at <= to) || meets(&self.troubles, life, from, to)
    }

    /// Whether the machine had no time in it for a process, or for all.
    pub(super) fn stood_still(&self, life: Option<Life>, from: u64, to: u64) -> bool {
        life.is_some_and(|life| meets(&self.stalls, life, from, to))
    }

    pub(super) fn resources(&self) -> BTreeSet<&str> {
        let accepted = self.accepted.iter().map(|accepted| &*accepted.resource);
        accepted.chain(self.runs.iter().map(|run| &*run.resource)).collect()
    }

    /// Runs a line each, for who has to find out.
    pub(super) fn excerpt<'a>(&self, runs: impl IntoIterator<Item = &'a Run>) -> String {
        runs.into_iter().map(|run| format!("\n  {}", Shown(self, run))).collect()
    }
}

fn meets(troubles: &[Trouble], life: Life, from: u64, to: u64) -> bool {
    troubles.iter().any(|trouble| {
        let about = trouble.life.is_none_or(|of| of == life);
        about && trouble.from < to && from < trouble.to
    })
}

/// A history, and which runs are whose.
pub(super) struct Books<'a> {
    history: &'a History,
    runs: HashMap<&'a str, Vec<&'a Run>>,
}

impl<'a> Books<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let mut runs: HashMap<_, Vec<_>> = HashMap::new();
        for run in &history.runs {
            if let Some(id) = &run.job {
                runs.entry(&**id).or_default().push(run);
            }
        }
        runs.values_mut().for_each(|runs| runs.sort_by_key(|run| run.from));
        Self { history, runs }
    }

    /// The runs of a job, in the order they began.
    pub(super) fn runs_of(&self, id: &str) -> &[&'a Run] {
        self.runs.get(id).map_or(&[], Vec::as_slice)
    }
}

impl Deref for Books<'_> {
    type Target = History;

    fn deref(&self) -> &History {
        self.history
    }
}

struct Shown<'a>(&'a History, &'a Run);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(history, run) = self;
        let Life { process, number } = run.life;
        let job = run.job.as_deref().unwrap_or("at once");
        write!(f, "process {process}.{number} {} {job}", run.resource)?;
        write!(f, " attempt {} fence {}", run.attempt, run.fence)?;
        write!(f, " from {} sure until {}", run.from / 1000, run.valid / 1000)?;
        match &run.end {
            Some(end) => write!(f, " ended {} with {}", end.at / 1000, end.status)?,
            None => f.write_str(" did not end")?,
        }
        for (what, at) in [("aborted", run.aborted), ("given up", run.dropped)] {
            if let Some(at) = at {
                write!(f, " {what} {}", at / 1000)?;
            }
        }
        match history.killed.get(&run.life) {
            Some(at) => write!(f, " killed {}", at / 1000),
            None => Ok(()),
        }
    }
}
