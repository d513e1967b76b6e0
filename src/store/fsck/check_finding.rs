//! What can be found.

use std::fmt;

use crate::key::LogHash;

/// What is wrong with something in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// A request waits or runs by its facts, and stands in no line and outside of none. Mended, it stands in its line
    /// again, where it stood.
    JobNotQueued,
    /// A place in a line or in an index names a request of which nothing is known. Mended, it is a dead letter
    /// (`lost`), or an entry less.
    IndexEntryWithoutJob,
    /// A request stands in its line and outside of it at once. Mended, it stands in its line.
    JobIndexedTwice,
    /// An index has a request that has ended, or ended otherwise. Mended, it has left the index.
    EndedJobInIndex,
    /// A request that is done or dead is in no listing. Mended, it is listed.
    EndedJobNotIndexed,
    /// A request waits and its envelope is gone, so it can't run. Mended, it is a dead letter (`lost`).
    JobWithoutEnvelope,
    /// An envelope without an end whose request has ended. Mended, it has a day left.
    EnvelopeWithoutJob,
    /// A request runs, its lock is not its run's any more, and no worker comes for it: none is to look in time, or
    /// none has for a minute. Mended, it runs again if it may, else it is a dead letter (`crashed, may have run`).
    OrphanedRun,
    /// The deadline of a request is in no index. Mended, it is.
    DeadlineNotIndexed,
    /// A lock has requests, and nobody is to look at it. Mended, a worker looks at once.
    LockNotScheduled,
    /// A lock is free, has requests, and is looked at too late. Mended, a worker looks at once.
    LockScheduledTooLate,
    /// A lock is to be looked at for its requests, and has none. Mended, it is not.
    ScheduledLockWithoutJobs,
    /// A number of requests or bytes is not what is there, so caps are met too early or too late. Mended, it is.
    WrongCount,
    /// A key that has to end by itself has no end. Mended, it has one.
    MissingExpiry,
    /// A key that something waits for ends by itself. Mended, it stays.
    UnexpectedExpiry,
    /// A task is in no index of its queue. Mended, it waits at once, or is a dead letter if it must not run twice.
    TaskNotIndexed,
    /// An index of a queue names a task of which nothing is known. Mended, it does not.
    IndexEntryWithoutTask,
    /// A task is in two indexes at once. Mended, it runs, else it waits, else it is dead.
    TaskIndexedTwice,
    /// A key is of another type than those of its name. Left to a person: its lock, request or quota fails until it
    /// is deleted.
    WrongKeyType,
    /// No version known here writes a key of that name. Left to a person.
    UnknownKey,
    /// A fact that can't be understood, or belongs elsewhere. Left to a person.
    InvalidValue,
    /// A note, no fault: an idempotency record outlives what is kept of its request. A client that repeats its
    /// request is told so, until the record ends.
    IdempotencyRecordWithoutJob,
}

impl FindingKind {
    /// All of them, with their word on the wire.
    const WIRE_NAMES: [(&'static str, Self); 22] = [
        ("no_place", Self::JobNotQueued),
        ("no_job", Self::IndexEntryWithoutJob),
        ("twice", Self::JobIndexedTwice),
        ("ended", Self::EndedJobInIndex),
        ("not_filed", Self::EndedJobNotIndexed),
        ("no_request", Self::JobWithoutEnvelope),
        ("request", Self::EnvelopeWithoutJob),
        ("orphan", Self::OrphanedRun),
        ("no_deadline", Self::DeadlineNotIndexed),
        ("not_due", Self::LockNotScheduled),
        ("due_late", Self::LockScheduledTooLate),
        ("due_idle", Self::ScheduledLockWithoutJobs),
        ("tally", Self::WrongCount),
        ("no_end", Self::MissingExpiry),
        ("has_end", Self::UnexpectedExpiry),
        ("no_task_place", Self::TaskNotIndexed),
        ("no_task", Self::IndexEntryWithoutTask),
        ("task_twice", Self::TaskIndexedTwice),
        ("type", Self::WrongKeyType),
        ("unknown", Self::UnknownKey),
        ("odd", Self::InvalidValue),
        ("record", Self::IdempotencyRecordWithoutJob),
    ];

    pub(crate) fn from_wire_name(word: &str) -> Option<Self> {
        Self::WIRE_NAMES.iter().find(|(known, _)| *known == word).map(|(_, kind)| *kind)
    }

    /// What it means, in a sentence.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::JobNotQueued => "a request waits or runs, and stands in no line",
            Self::IndexEntryWithoutJob => "an index names a request of which nothing is known",
            Self::JobIndexedTwice => "a request stands in its line and outside of it at once",
            Self::EndedJobInIndex => "an index has a request that is in another state",
            Self::EndedJobNotIndexed => "a request that has ended is in no listing",
            Self::JobWithoutEnvelope => "a request waits, and its envelope is gone",
            Self::EnvelopeWithoutJob => "an envelope is kept for ever, and its request has ended",
            Self::OrphanedRun => "a request runs without its lock, and nobody comes for it",
            Self::DeadlineNotIndexed => "the deadline of a request is in no index",
            Self::LockNotScheduled => "a lock has requests, and nobody is to look at it",
            Self::LockScheduledTooLate => "a free lock has requests, and is looked at too late",
            Self::ScheduledLockWithoutJobs => {
                "a lock is to be looked at for its requests, and has none"
            }
            Self::WrongCount => "a number is not what is there",
            Self::MissingExpiry => "a key that has to end by itself has no end",
            Self::UnexpectedExpiry => "a key that something waits for ends by itself",
            Self::TaskNotIndexed => "a task is in no index of its queue",
            Self::IndexEntryWithoutTask => {
                "an index of a queue names a task of which nothing is known"
            }
            Self::TaskIndexedTwice => "a task is in two indexes at once",
            Self::WrongKeyType => "a key is of another type; delete it by hand",
            Self::UnknownKey => "no version known here writes a key of that name",
            Self::InvalidValue => "a fact that can't be understood, or belongs elsewhere",
            Self::IdempotencyRecordWithoutJob => {
                "an idempotency record outlives its request, as it may"
            }
        }
    }

    /// False for what may well be so.
    #[must_use]
    pub fn is_fault(self) -> bool {
        self != Self::IdempotencyRecordWithoutJob
    }
}

/// One thing that was found. Its `Display` names keys, and so what is in them (ids, addresses, accounts): it is for
/// operators, not for logs that travel. Its `Debug` hashes them, as logs do.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct CheckFinding {
    /// What is wrong.
    pub kind: FindingKind,
    /// The shard it is in; `None` = what all shards share, or the embedded store's.
    pub shard: Option<u16>,
    /// What it is about: a request's id, a lock, or a key without the shard's prefix.
    pub name: String,
    /// What was seen, where there is more to tell.
    pub detail: String,
    /// It was mended in the same step.
    pub repaired: bool,
}

impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, shard, name, detail, repaired: mended } = self;
        match shard {
            Some(shard) => write!(f, "{{{shard}}} {name}: {}", kind.description())?,
            None => write!(f, "{name}: {}", kind.description())?,
        }
        if !detail.is_empty() {
            write!(f, " ({detail})")?;
        }
        f.write_str(if *mended { "; mended" } else { "" })
    }
}

impl fmt::Debug for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A report ends up in `tracing::warn!(?report)` sooner or later. `Display` is for those who mean it.
        let Self { kind, shard, name, detail: _, repaired: mended } = self;
        f.debug_struct("CheckFinding")
            .field("kind", kind)
            .field("shard", shard)
            .field("name", &format_args!("{}", LogHash(name)))
            .field("mended", mended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CheckReport;

    #[test]
    fn a_report_names_nobody_in_its_debug() {
        let (name, detail) = ("o:alice".to_owned(), "of alice".to_owned());
        let kind = FindingKind::MissingExpiry;
        let finding = CheckFinding { kind, shard: Some(3), name, detail, repaired: true };
        let report = CheckReport {
            findings: vec![finding],
            examined: 1,
            namespace_keys: 1,
            unsummed_shards: 0,
            is_complete_scan: true,
        };
        let text = format!("{report:?}");
        assert!(!text.contains("alice"), "{text}");
        assert!(text.contains("MissingExpiry") && text.contains("Some(3)"), "{text}");
        assert!(report.to_string().contains("alice"), "operators are told");
    }
}
