//! What a pass tells.

use std::fmt;

use super::{CheckFinding, FindingKind};

/// What [`Check::run`](super::Check::run) has found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Each once, by kind and place. Notes are among them ([`FindingKind::is_fault`]).
    pub findings: Vec<CheckFinding>,
    /// Names, entries of indexes and requests that were looked at; one may count several times.
    pub examined: u64,
    /// Keys that were met, but for the one that every connection leaves in a new namespace. Where all names were looked
    /// at and it is 0, nobody has used the namespace yet, or its name is mistyped.
    pub namespace_keys: u64,
    /// Shards whose sums were not compared: more than a hundred of their lines and late requests are too many for one
    /// step; or, where not all names were looked at, more was counted than the indexes name, and the rest may be in
    /// lines that none of them has.
    pub unsummed_shards: u64,
    /// Whether all names of the namespace were looked at. Otherwise shards of a cluster have moved meanwhile, and keys
    /// that no index names may have been passed over: run it again.
    pub is_complete_scan: bool,
}

impl CheckReport {
    /// Those that are faults.
    pub fn faults(&self) -> impl Iterator<Item = &CheckFinding> {
        self.findings.iter().filter(|finding| finding.kind.is_fault())
    }

    /// Nothing is wrong, mended or not.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults().next().is_none()
    }

    /// Nothing is wrong any more.
    #[must_use]
    pub fn is_repaired(&self) -> bool {
        self.faults().all(|finding| finding.repaired)
    }

    /// Whether all names were looked at, and there was none to look at.
    #[must_use]
    pub fn is_namespace_empty(&self) -> bool {
        self.is_complete_scan && self.namespace_keys == 0
    }

    /// How many there are of a kind.
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
        let faults = self.faults().count();
        let mended = self.faults().filter(|finding| finding.repaired).count();
        write!(f, "{faults} faults, {mended} mended, {} notes; ", self.findings.len() - faults)?;
        write!(f, "{} looked at", self.examined)?;
        if self.unsummed_shards > 0 {
            write!(f, ", {} shards not summed up", self.unsummed_shards)?;
        }
        f.write_str(if self.is_complete_scan { "" } else { ", not all names" })?;
        f.write_str(if self.is_namespace_empty() {
            "; nothing of this namespace is there"
        } else {
            ""
        })
    }
}
