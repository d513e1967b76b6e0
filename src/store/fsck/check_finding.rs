//! Findings of a store check.

use std::fmt;

use serde::Serialize;

use crate::key::LogHash;

/// Kind of a problem in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// A job is queued or running by its record, but is neither in its lock's queue nor delayed.
    /// Repair: it returns to its position in the queue.
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
        ("job_not_queued", Self::JobNotQueued),
        ("entry_without_job", Self::IndexEntryWithoutJob),
        ("job_indexed_twice", Self::JobIndexedTwice),
        ("ended_job_in_index", Self::EndedJobInIndex),
        ("ended_job_not_indexed", Self::EndedJobNotIndexed),
        ("job_without_envelope", Self::JobWithoutEnvelope),
        ("envelope_without_job", Self::EnvelopeWithoutJob),
        ("orphaned_run", Self::OrphanedRun),
        ("deadline_not_indexed", Self::DeadlineNotIndexed),
        ("lock_not_scheduled", Self::LockNotScheduled),
        ("lock_scheduled_too_late", Self::LockScheduledTooLate),
        ("scheduled_without_jobs", Self::ScheduledLockWithoutJobs),
        ("wrong_count", Self::WrongCount),
        ("missing_expiry", Self::MissingExpiry),
        ("unexpected_expiry", Self::UnexpectedExpiry),
        ("task_not_indexed", Self::TaskNotIndexed),
        ("entry_without_task", Self::IndexEntryWithoutTask),
        ("task_indexed_twice", Self::TaskIndexedTwice),
        ("wrong_type", Self::WrongKeyType),
        ("unknown_key", Self::UnknownKey),
        ("invalid_value", Self::InvalidValue),
        ("record_without_job", Self::IdempotencyRecordWithoutJob),
    ];

    pub(crate) fn from_wire_name(wire_name: &str) -> Option<Self> {
        Self::WIRE_NAMES.iter().find(|(name, _)| *name == wire_name).map(|(_, kind)| *kind)
    }

    /// Returns a sentence that describes the kind.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::JobNotQueued => "a pending job is in no queue or index",
            Self::IndexEntryWithoutJob => "an index names an unknown job",
            Self::JobIndexedTwice => "a job is in its queue and in another index",
            Self::EndedJobInIndex => "an index has a job in another state",
            Self::EndedJobNotIndexed => "an ended job is in no index of ended jobs",
            Self::JobWithoutEnvelope => "a pending job has no stored request",
            Self::EnvelopeWithoutJob => "the stored request of an ended job never expires",
            Self::OrphanedRun => "a job is running without its lock, and no worker will reclaim it",
            Self::DeadlineNotIndexed => "the deadline of a job is in no index",
            Self::LockNotScheduled => "a lock has jobs but is not scheduled",
            Self::LockScheduledTooLate => "a free lock with jobs is scheduled too late",
            Self::ScheduledLockWithoutJobs => "a lock without jobs is scheduled",
            Self::WrongCount => "a counter differs from the data",
            Self::MissingExpiry => "a key that must expire has no expiry",
            Self::UnexpectedExpiry => "a key that must not expire has an expiry",
            Self::TaskNotIndexed => "a task is in no index of its queue",
            Self::IndexEntryWithoutTask => "an index of a queue names an unknown task",
            Self::TaskIndexedTwice => "a task is in two indexes",
            Self::WrongKeyType => "a key has another type; delete it by hand",
            Self::UnknownKey => "no known version writes a key of that name",
            Self::InvalidValue => "a value cannot be parsed or belongs to another key",
            Self::IdempotencyRecordWithoutJob => {
                "an idempotency record outlives its job, which is allowed"
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
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
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
        let Self { kind, shard, name, detail, repaired: is_repaired } = self;
        match shard {
            Some(shard) => write!(f, "{{{shard}}} {name}: {}", kind.description())?,
            None => write!(f, "{name}: {}", kind.description())?,
        }
        if !detail.is_empty() {
            write!(f, " ({detail})")?;
        }
        f.write_str(if *is_repaired { "; repaired" } else { "" })
    }
}

impl fmt::Debug for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A report ends up in `tracing::warn!(?report)` sooner or later. `Display` must be chosen
        // on purpose.
        let Self { kind, shard, name, detail: _, repaired: is_repaired } = self;
        f.debug_struct("CheckFinding")
            .field("kind", kind)
            .field("shard", shard)
            .field("name", &format_args!("{}", LogHash(name)))
            .field("repaired", is_repaired)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CheckReport;

    #[test]
    fn report_debug_omits_client_names() {
        let (name, detail) = ("o:alice".to_owned(), "of alice".to_owned());
        let kind = FindingKind::MissingExpiry;
        let finding = CheckFinding { kind, shard: Some(3), name, detail, repaired: true };
        let report = CheckReport {
            findings: vec![finding],
            examined: 1,
            namespace_keys: 1,
            is_complete_scan: true,
            ..CheckReport::default()
        };
        let text = format!("{report:?}");
        assert!(!text.contains("alice"), "{text}");
        assert!(text.contains("MissingExpiry") && text.contains("Some(3)"), "{text}");
        assert!(report.to_string().contains("alice"), "the report has a text");
    }
}
