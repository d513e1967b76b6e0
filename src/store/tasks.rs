//! Tasks of a queue that stands by itself, seen from its worker: the steps, and what they carry.
//!
//! Each method of [`Tasks`] is one atomic step, as those of `Backend` are; `lua/tasks_*.lua` has them for
//! Redis. Everything of a queue is in one shard, that of its name.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::backend::{Node, Step};
use crate::key::{Hashed, Key};

/// Length of the text of a [`TaskId`].
pub(crate) const ID: usize = 22;

/// Most tasks that one step starts, ends or renews.
pub(crate) const MOST: usize = 100;

/// Entries of a task's history that are kept: the last ones.
pub(crate) const HISTORY: usize = 8;

/// Longest reason in bytes that is kept of a failure.
pub(crate) const REASON: usize = 200;

/// A task that has been due for so long, in us, while somebody was idle: its message must have been lost.
pub(crate) const OVERDUE_US: u64 = 50_000;

/// The id of a task: 128 bits, of which 122 are random, as 22 letters of `A-Z a-z 0-9 - _`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

impl TaskId {
    pub(crate) fn new() -> Self {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bits = uuid::Uuid::new_v4().as_u128();
        let mut text = [b'A'; ID];
        for letter in &mut text {
            *letter = LETTERS[usize::try_from(bits & 63).unwrap_or(0)];
            bits >>= 6;
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    /// Reads an id; `None` if the text can't be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (text.len() == ID && text.bytes().all(plain)).then(|| Self(text.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({})", Hashed(&self.0))
    }
}

/// `tasks_push.lua`, one of several.
#[derive(Debug, Clone)]
pub(crate) struct Push {
    pub(crate) queue: Key,
    pub(crate) id: TaskId,
    pub(crate) delay: Duration,
    pub(crate) unique: Option<Unique>,
    /// May run again after a crash.
    pub(crate) again: bool,
    pub(crate) max_attempts: u32,
    pub(crate) payload: Bytes,
    /// Most tasks that wait, and most bytes of those that wait or run.
    pub(crate) caps: (u64, u64),
}

/// What no two tasks may have in common.
#[derive(Debug, Clone)]
pub(crate) struct Unique {
    pub(crate) name: Key,
    /// For so long from the push, whatever becomes of the task; `None` = as long as the task waits or runs.
    pub(crate) window: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PushedAs {
    Stored,
    /// This one has the unique key.
    Known(TaskId),
    Full,
}

/// One run of a task: who owns it while it runs.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunToken {
    pub(crate) id: TaskId,
    /// `<worker>.<turn>`: no two runs of a task have the same.
    pub(crate) by: Arc<str>,
}

impl RunToken {
    /// The member of `zl`.
    pub(crate) fn member(&self) -> String {
        [self.id.as_str(), &self.by].concat()
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunToken({:?})", self.id)
    }
}

/// `tasks_turn.lua`.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) queue: Key,
    pub(crate) node: Node,
    /// The worker: random, 16 hex digits.
    pub(crate) worker: Arc<str>,
    /// Counts the worker's turns. One that is sent again has the same number, and the same answer.
    pub(crate) number: u64,
    /// Runs that it would start at once.
    pub(crate) want: usize,
    pub(crate) lease: Duration,
    pub(crate) limits: Limits,
    /// How long it may be idle without another turn; zero: it is not to be woken.
    pub(crate) idle: Duration,
    /// It stands among the idle ones, and has not been woken since.
    pub(crate) listed: bool,
    pub(crate) graves: Graves,
    pub(crate) ends: Vec<End>,
}

/// What binds all workers of a queue together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// Runs at once; 0 = any number.
    pub(crate) running: u64,
    /// Between two starts, in us; 0 = no limit.
    pub(crate) interval_us: u64,
    /// Starts that may come at once.
    pub(crate) burst: u64,
}

/// What becomes of dead letters, and when a task is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Graves {
    pub(crate) keep: Duration,
    pub(crate) most: u64,
    /// Crashes after which a task is dead.
    pub(crate) crashes: u32,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) run: RunToken,
    /// Length of the record, which the queue's bytes are counted by.
    pub(crate) bytes: u64,
    /// The unique key to be given up, if it is kept as long as the task.
    pub(crate) unique: Option<Arc<str>>,
    pub(crate) verdict: EndAs,
}

#[derive(Debug, Clone)]
pub(crate) enum EndAs {
    Done,
    Retry {
        delay: Duration,
        fault: TaskFault,
        reason: String,
    },
    Dead {
        fault: TaskFault,
        reason: String,
    },
    /// Not started, or not to be blamed: no attempt is charged, and it is first again.
    Back {
        delay: Duration,
    },
}

/// What went wrong with an attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskFault {
    /// The handler answered with an error.
    Failed,
    /// The handler panicked.
    Panicked,
    /// Its worker ended, or stood still, for longer than the lease.
    Crashed,
    /// The payload could not be read as what the worker expects.
    Undecodable,
}

impl TaskFault {
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Failed => "f",
            Self::Panicked => "p",
            Self::Crashed => "c",
            Self::Undecodable => "u",
        }
    }

    pub(crate) fn of(letter: &str) -> Option<Self> {
        let all = [Self::Failed, Self::Panicked, Self::Crashed, Self::Undecodable];
        all.into_iter().find(|fault| fault.letter() == letter)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Turned {
    /// Whether each end stands; if not, the run had been lost.
    pub(crate) stood: Vec<bool>,
    pub(crate) runs: Vec<Started>,
    /// When to look again; `None` = when told.
    pub(crate) wait: Option<Duration>,
    /// It stands among the idle ones now.
    pub(crate) listed: bool,
}

/// A run that has begun.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) id: TaskId,
    /// From 1.
    pub(crate) attempt: u32,
    pub(crate) record: Bytes,
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The record is the user's.
        f.debug_tuple("Started").field(&self.id).field(&self.attempt).finish()
    }
}

/// What is kept of a task as one text: `<pushed us> <again> <max attempts> <unique>\n<payload>`. The first
/// part is the store's.
pub(crate) struct Record {
    pub(crate) pushed_us: u64,
    pub(crate) again: bool,
    pub(crate) max_attempts: u32,
    pub(crate) unique: Option<Arc<str>>,
    pub(crate) payload: Bytes,
}

impl Record {
    /// The part of it that the store does not write.
    pub(crate) fn rest(push: &Push) -> Vec<u8> {
        let unique = push.unique.as_ref().filter(|unique| unique.window.is_none());
        let unique = unique.map_or("", |unique| unique.name.as_str());
        let head = format!(" {} {} {unique}\n", u8::from(push.again), push.max_attempts);
        let mut rest = Vec::with_capacity(head.len() + push.payload.len());
        rest.extend_from_slice(head.as_bytes());
        rest.extend_from_slice(&push.payload);
        rest
    }

    pub(crate) fn read(text: &Bytes) -> Option<Self> {
        let line = text.iter().position(|b| *b == b'\n')?;
        let mut words = std::str::from_utf8(&text[..line]).ok()?.split(' ');
        let mut next = || words.next();
        Some(Self {
            pushed_us: next()?.parse().ok()?,
            again: next()? == "1",
            max_attempts: next()?.parse().ok()?,
            unique: Some(next()?).filter(|name| !name.is_empty()).map(Into::into),
            payload: text.slice(line + 1..),
        })
    }
}

/// One attempt that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) at_us: u64,
    pub(crate) fault: TaskFault,
    pub(crate) reason: String,
}

/// What is kept beside the record once an attempt has gone wrong: `<attempts> <crashes>\n`, and a line for
/// each of the last ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) history: Vec<Past>,
}

impl Meta {
    pub(crate) fn read(text: &str) -> Self {
        let mut lines = text.split('\n');
        let mut counts =
            lines.next().unwrap_or_default().split(' ').map(|n| n.parse().unwrap_or(0));
        let (attempts, crashes) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
        let past = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let at_us = words.next()?.parse().ok()?;
            let fault = TaskFault::of(words.next()?)?;
            Some(Past { at_us, fault, reason: words.next().unwrap_or_default().to_owned() })
        };
        Self { attempts, crashes, history: lines.filter_map(past).collect() }
    }
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskState {
    /// It waits to be run, or for its time.
    Waiting,
    /// A worker runs it, or has died with it a moment ago.
    Running,
    /// It was given up, and is kept for somebody to look at.
    Dead,
}

/// What is told of a task; never its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskView {
    pub(crate) id: TaskId,
    pub(crate) state: TaskState,
    /// Until it is due; zero if it is.
    pub(crate) due: Duration,
    pub(crate) pushed_us: u64,
    /// Of the payload.
    pub(crate) bytes: u64,
    pub(crate) meta: Meta,
}

/// A page of dead letters, and where the next one starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeadPage {
    pub(crate) letters: Vec<TaskView>,
    pub(crate) next: Option<u64>,
}

/// What is thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purge {
    Waiting,
    Dead,
}

/// Numbers of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Tasks that wait, those included that are not due yet.
    pub waiting: u64,
    /// Of those, the ones that are due.
    pub due: u64,
    /// Tasks that run.
    pub running: u64,
    /// Dead letters that are kept.
    pub dead_letters: u64,
    /// Bytes of the tasks that wait or run, with what is kept beside each payload.
    pub bytes: u64,
    /// Tasks that were ever pushed.
    pub pushed: u64,
    /// Tasks that have ended well.
    pub done: u64,
    /// Attempts that ended with an error, or could not be read.
    pub failed: u64,
    /// Attempts that panicked.
    pub panicked: u64,
    /// Attempts whose worker died, or stood still for longer than its lease.
    pub crashed: u64,
    /// Tasks that became dead letters.
    pub dead: u64,
    /// Dead letters that were thrown away: for their age, because there were too many, or by a purge.
    pub trimmed: u64,
    /// Tasks that were cancelled, or purged while they waited.
    pub cancelled: u64,
    /// Tasks whose record had vanished from the store when they were to be run.
    pub lost: u64,
    /// It starts nothing until it is resumed.
    pub paused: bool,
}

/// The steps. Those that a lost reply would leave in doubt are idempotent: a turn by its number, renewal by what
/// it does; a push is sent again under a number of its own, but each call is another push, with an id of its own.
pub(crate) trait Tasks {
    fn push_task(&self, call: Push) -> Step<'_, PushedAs>;
    fn turn(&self, call: Turn) -> Step<'_, Turned>;
    /// Whether each run is still its owner's; at most [`MOST`].
    fn renew_runs(&self, queue: Key, runs: Vec<RunToken>, lease: Duration) -> Step<'_, Vec<bool>>;
    fn task(&self, queue: Key, id: TaskId) -> Step<'_, Option<TaskView>>;
    fn task_payload(&self, queue: Key, id: TaskId) -> Step<'_, Option<Bytes>>;
    /// Where it was found; it is gone if it waited. NOT idempotent, nor are those below.
    fn cancel_task(&self, queue: Key, id: TaskId) -> Step<'_, Option<TaskState>>;
    /// The next of them behind this one, the oldest first.
    fn dead_tasks(&self, queue: Key, after: u64, most: usize) -> Step<'_, DeadPage>;
    /// Puts a dead letter at the tail; false if it is none.
    fn redrive_task(&self, queue: Key, id: TaskId) -> Step<'_, bool>;
    /// Puts the oldest dead letters at the tail, the first one after `first`, each by `spacing` later; how many.
    fn redrive_tasks(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> Step<'_, usize>;
    /// Throws away at most [`MOST`]; how many.
    fn purge_tasks(&self, queue: Key, what: Purge) -> Step<'_, usize>;
    fn pause_tasks(&self, queue: Key, pause: bool) -> Step<'_, ()>;
    fn task_stats(&self, queue: Key) -> Step<'_, QueueStats>;
}
