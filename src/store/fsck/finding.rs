//! What can be found.

use std::fmt;

use crate::key::Hashed;

/// What is wrong with something in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// A request waits or runs by its facts, and stands in no line and outside of none. Mended, it stands in its line
    /// again, where it stood.
    JobWithoutPlace,
    /// A place in a line or in an index names a request of which nothing is known. Mended, it is a dead letter
    /// (`lost`), or an entry less.
    PlaceWithoutJob,
    /// A request stands in its line and outside of it at once. Mended, it stands in its line.
    JobInTwoPlaces,
    /// An index has a request that has ended, or ended otherwise. Mended, it has left the index.
    EndedJobInIndex,
    /// A request that is done or dead is in no listing. Mended, it is listed.
    EndedJobNotListed,
    /// A request waits and its envelope is gone, so it can't run. Mended, it is a dead letter (`lost`).
    JobWithoutEnvelope,
    /// An envelope without an end whose request has ended. Mended, it has a day left.
    EnvelopeWithoutJob,
    /// A request runs, its lock is not its run's any more, and no worker comes for it: none is to look in time, or
    /// none has for a minute. Mended, it runs again if it may, else it is a dead letter (`crashed, may have run`).
    Orphan,
    /// The deadline of a request is in no index. Mended, it is.
    DeadlineNotIndexed,
    /// A lock has requests, and nobody is to look at it. Mended, a worker looks at once.
    LineNotDue,
    /// A lock is free, has requests, and is looked at too late. Mended, a worker looks at once.
    LineDueTooLate,
    /// A lock is to be looked at for its requests, and has none. Mended, it is not.
    DueWithoutJobs,
    /// A number of requests or bytes is not what is there, so caps are met too early or too late. Mended, it is.
    WrongTally,
    /// A key that has to end by itself has no end. Mended, it has one.
    NoEnd,
    /// A key that something waits for ends by itself. Mended, it stays.
    HasEnd,
    /// A task is in no index of its queue. Mended, it waits at once, or is a dead letter if it must not run twice.
    TaskWithoutPlace,
    /// An index of a queue names a task of which nothing is known. Mended, it does not.
    PlaceWithoutTask,
    /// A task is in two indexes at once. Mended, it runs, else it waits, else it is dead.
    TaskInTwoPlaces,
    /// A key is of another type than those of its name. Left to a person: its lock, request or quota fails until it
    /// is deleted.
    WrongType,
    /// No version known here writes a key of that name. Left to a person.
    UnknownKey,
    /// A fact that can't be understood, or belongs elsewhere. Left to a person.
    Odd,
    /// A note, no fault: an idempotency record outlives what is kept of its request. A client that repeats its
    /// request is told so, until the record ends.
    RecordWithoutJob,
}

impl FindingKind {
    /// All of them, with their word on the wire.
    const WORDS: [(&'static str, Self); 22] = [
        ("no_place", Self::JobWithoutPlace),
        ("no_job", Self::PlaceWithoutJob),
        ("twice", Self::JobInTwoPlaces),
        ("ended", Self::EndedJobInIndex),
        ("not_filed", Self::EndedJobNotListed),
        ("no_request", Self::JobWithoutEnvelope),
        ("request", Self::EnvelopeWithoutJob),
        ("orphan", Self::Orphan),
        ("no_deadline", Self::DeadlineNotIndexed),
        ("not_due", Self::LineNotDue),
        ("due_late", Self::LineDueTooLate),
        ("due_idle", Self::DueWithoutJobs),
        ("tally", Self::WrongTally),
        ("no_end", Self::NoEnd),
        ("has_end", Self::HasEnd),
        ("no_task_place", Self::TaskWithoutPlace),
        ("no_task", Self::PlaceWithoutTask),
        ("task_twice", Self::TaskInTwoPlaces),
        ("type", Self::WrongType),
        ("unknown", Self::UnknownKey),
        ("odd", Self::Odd),
        ("record", Self::RecordWithoutJob),
    ];

    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, kind)| *kind)
    }

    /// What it means, in a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::JobWithoutPlace => "a request waits or runs, and stands in no line",
            Self::PlaceWithoutJob => "an index names a request of which nothing is known",
            Self::JobInTwoPlaces => "a request stands in its line and outside of it at once",
            Self::EndedJobInIndex => "an index has a request that is in another state",
            Self::EndedJobNotListed => "a request that has ended is in no listing",
            Self::JobWithoutEnvelope => "a request waits, and its envelope is gone",
            Self::EnvelopeWithoutJob => "an envelope is kept for ever, and its request has ended",
            Self::Orphan => "a request runs without its lock, and nobody comes for it",
            Self::DeadlineNotIndexed => "the deadline of a request is in no index",
            Self::LineNotDue => "a lock has requests, and nobody is to look at it",
            Self::LineDueTooLate => "a free lock has requests, and is looked at too late",
            Self::DueWithoutJobs => "a lock is to be looked at for its requests, and has none",
            Self::WrongTally => "a number is not what is there",
            Self::NoEnd => "a key that has to end by itself has no end",
            Self::HasEnd => "a key that something waits for ends by itself",
            Self::TaskWithoutPlace => "a task is in no index of its queue",
            Self::PlaceWithoutTask => "an index of a queue names a task of which nothing is known",
            Self::TaskInTwoPlaces => "a task is in two indexes at once",
            Self::WrongType => "a key is of another type; delete it by hand",
            Self::UnknownKey => "no version known here writes a key of that name",
            Self::Odd => "a fact that can't be understood, or belongs elsewhere",
            Self::RecordWithoutJob => "an idempotency record outlives its request, as it may",
        }
    }

    /// False for what may well be so.
    #[must_use]
    pub fn is_fault(self) -> bool {
        self != Self::RecordWithoutJob
    }
}

/// One thing that was found. Its `Display` names keys, and so what is in them (ids, addresses, accounts): it is for
/// operators, not for logs that travel. Its `Debug` hashes them, as logs do.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// The shard it is in; `None` = what all shards share, or the embedded store's.
    pub shard: Option<u16>,
    /// What it is about: a request's id, a lock, or a key without the shard's prefix.
    pub name: String,
    /// What was seen, where there is more to tell.
    pub detail: String,
    /// It was mended in the same step.
    pub mended: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, shard, name, detail, mended } = self;
        match shard {
            Some(shard) => write!(f, "{{{shard}}} {name}: {}", kind.sentence())?,
            None => write!(f, "{name}: {}", kind.sentence())?,
        }
        if !detail.is_empty() {
            write!(f, " ({detail})")?;
        }
        f.write_str(if *mended { "; mended" } else { "" })
    }
}

impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A report ends up in `tracing::warn!(?report)` sooner or later. `Display` is for those who mean it.
        let Self { kind, shard, name, detail: _, mended } = self;
        f.debug_struct("Finding")
            .field("kind", kind)
            .field("shard", shard)
            .field("name", &format_args!("{}", Hashed(name)))
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
        let kind = FindingKind::NoEnd;
        let finding = Finding { kind, shard: Some(3), name, detail, mended: true };
        let report = CheckReport {
            findings: vec![finding],
            looked: 1,
            owned: 1,
            uncounted: 0,
            scanned: true,
        };
        let text = format!("{report:?}");
        assert!(!text.contains("alice"), "{text}");
        assert!(text.contains("NoEnd") && text.contains("Some(3)"), "{text}");
        assert!(report.to_string().contains("alice"), "operators are told");
    }
}
