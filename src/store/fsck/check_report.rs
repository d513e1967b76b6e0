//! Report of a store check.

use std::fmt;

use serde::Serialize;

use super::{CheckFinding, FindingKind};

/// Report of [`StoreCheck::run`](super::StoreCheck::run).
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// All findings, each once by kind and name, including notes ([`FindingKind::is_fault`]).
    pub findings: Vec<CheckFinding>,
    /// Number of examined keys, index entries and jobs; one may count several times.
    pub examined: u64,
    /// Number of keys found, except the one that every connection leaves in a new namespace. If the
    /// scan is complete and this is 0, the namespace was never used, or its name is mistyped.
    pub namespace_keys: u64,
    /// Number of dead jobs that are kept: deferred requests to redrive or to purge
    /// ([`Store::deferred_jobs`](crate::Store::deferred_jobs)).
    pub dead_jobs: u64,
    /// Number of dead letters that are kept, of all task queues
    /// ([`Queue::dead_letters`](crate::queue::Queue::dead_letters)). The embedded store does not
    /// list its queues: 0.
    pub dead_letters: u64,
    /// Number of shards whose totals were not compared. A shard is skipped if
    ///
    /// - it has more than 100 locks with jobs and delayed jobs, too many for one operation, or
    /// - the scan is incomplete and more was counted than the indexes name: the rest may belong to
    ///   locks that no index names.
    pub unsummed_shards: u64,
    /// True if all keys of the namespace were examined. Otherwise shards of a cluster have moved
    /// meanwhile, and keys that no index names may have been missed: run the check again.
    pub is_complete_scan: bool,
}

impl CheckReport {
    /// Iterates over the findings that are faults.
    pub fn faults(&self) -> impl Iterator<Item = &CheckFinding> {
        self.findings.iter().filter(|finding| finding.kind.is_fault())
    }

    /// Returns true if there are no faults, repaired or not.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults().next().is_none()
    }

    /// Returns true if all faults were repaired.
    #[must_use]
    pub fn is_repaired(&self) -> bool {
        self.faults().all(|finding| finding.repaired)
    }

    /// Returns true if all keys were examined and there were none.
    #[must_use]
    pub fn is_namespace_empty(&self) -> bool {
        self.is_complete_scan && self.namespace_keys == 0
    }

    /// Returns the counts of the report in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let faults = self.faults().count();
        let repaired = self.faults().filter(|finding| finding.repaired).count();
        let notes = self.findings.len() - faults;
        let mut summary = format!(
            "{faults} faults, {repaired} repaired, {notes} notes; {} examined, {} dead jobs, {} \
             dead letters of queues",
            self.examined, self.dead_jobs, self.dead_letters
        );
        if self.unsummed_shards > 0 {
            summary += &format!(", {} shards without totals", self.unsummed_shards);
        }
        summary += if self.is_complete_scan { "" } else { ", scan incomplete" };
        summary += if self.is_namespace_empty() { "; the namespace is empty" } else { "" };
        summary
    }

    /// Returns the number of findings of a kind.
    #[must_use]
    pub fn count(&self, kind: FindingKind) -> usize {
        self.findings.iter().filter(|finding| finding.kind == kind).count()
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        f.write_str(&self.summary())
    }
}
