//! Findings of a store check.

use std::fmt;

use crate::key::LogHash;

/// Kind of a problem in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// A job is queued or running by its record, but is neither in its lock's queue nor delayed.
    /// Repair: it returns to its place in the queue.
    JobNotQueued,
    /// An entry of a queue or an index names a job without a record. Repair: the job becomes a dead
    /// letter (`lost`), or the entry is removed.
    IndexEntryWithoutJob,
    /// A job is in its lock's queue and delayed at once. Repair: it stays in the queue.
    JobIndexedTwice,
    /// An index contains a job that has ended, or has ended in another state. Repair: the entry is
    /// removed.
    EndedJobInIndex,
    /// A done or dead job is in no listing. Repair: it is listed.
    EndedJobNotIndexed,
    /// The envelope of a pending job is missing, so it cannot run. Repair: the job becomes a dead
    /// letter (`lost`).
    JobWithoutEnvelope,
    /// The envelope of an ended job has no expiry. Repair: it expires in a day.
    EnvelopeWithoutJob,
    /// A job is running, its run has lost the lock, and no worker will take it back: none is
    /// scheduled to poll in time, or none has polled for a minute. Repair: it runs again if it may,
    /// or else becomes a dead letter (`crashed, may have run`).
    OrphanedRun,
    /// The deadline of a job is in no index. Repair: it is indexed.
    DeadlineNotIndexed,
    /// A lock has jobs and no due time. Repair: a worker polls at once.
    LockNotScheduled,
    /// A lock is free, has jobs, and its due time is too late. Repair: a worker polls at once.
    LockScheduledTooLate,
    /// A lock has a due time and no jobs. Repair: the due time is removed.
    ScheduledLockWithoutJobs,
    /// A count of jobs or bytes is wrong, so limits apply too early or too late. Repair: it is
    /// corrected.
    WrongCount,
    /// A key that has to expire has no expiry. Repair: it gets one.
    MissingExpiry,
    /// A key that is still needed will expire. Repair: the expiry is removed.
    UnexpectedExpiry,
    /// A task is in no index of its queue. Repair: it is due at once, or becomes a dead letter if
    /// it must not run twice.
    TaskNotIndexed,
    /// An index of a queue names a task without a record. Repair: the entry is removed.
    IndexEntryWithoutTask,
    /// A task is in two indexes at once. Repair: it stays in the first of running, waiting, dead.
    TaskIndexedTwice,
    /// The type of a key does not match its name. Not repaired: its lock, job or quota fails until
    /// an operator deletes the key.
    WrongKeyType,
    /// No known version of lockgate writes a key of this name. Not repaired.
    UnknownKey,
    /// A value that cannot be parsed, or belongs elsewhere. Not repaired.
    InvalidValue,
    /// An idempotency record outlives its job. This is a note and no fault: a client that repeats
    /// its request learns so until the record expires.
    IdempotencyRecordWithoutJob,
}

impl FindingKind {
    /// All kinds, with their names on the wire.
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

    /// Returns a sentence that describes the kind.
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

    /// Returns false for a note, which needs no action.
    #[must_use]
    pub fn is_fault(self) -> bool {
        self != Self::IdempotencyRecordWithoutJob
    }
}

/// One finding of a check.
///
/// Its `Display` names keys, and so their content (ids, addresses, accounts). It is for operators
/// and not for logs that are forwarded. Its `Debug` hashes the names, as log records do.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct CheckFinding {
    /// Kind of the problem.
    pub kind: FindingKind,
    /// Shard of the finding; `None` for data that all shards share.
    pub shard: Option<u16>,
    /// Id of a job, name of a lock, or a key without the shard's prefix.
    pub name: String,
    /// Observed values, if there is more to report.
    pub detail: String,
    /// True if the problem was repaired in the same operation.
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
        // A report ends up in `tracing::warn!(?report)` sooner or later. `Display` must be chosen
        // on purpose.
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
