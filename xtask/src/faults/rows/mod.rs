//! The numbered faults, and the tests that make them happen.
//!
//! `l` is the table of locks, `d` that of deferred requests, `q` what is promised of quotas. A test is named by a part of its
//! path, as libtest takes it; a row without any says why it can't be done on one machine, and what stands in for it.

mod deferral;
mod locks;
mod quotas;

/// Which program has the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The crate itself.
    Unit,
    Scenarios,
    Faults,
    Deferral,
    Quorum,
    /// A process of its own, whose log is looked at.
    Warnings,
}

impl Target {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unit => "lockgate",
            Self::Scenarios => "scenarios",
            Self::Faults => "faults",
            Self::Deferral => "deferral",
            Self::Quorum => "quorum",
            Self::Warnings => "warnings",
        }
    }
}

/// What the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Topology {
    Single,
    Sentinel,
    Cluster,
}

impl Topology {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

/// A numbered fault.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) table: char,
    pub(super) number: u8,
    pub(super) topology: Topology,
    pub(super) fault: &'static str,
    pub(super) by: &'static [(Target, &'static str)],
    /// What of it can't be done here, and what stands in for it.
    pub(super) not_here: &'static str,
}

impl Row {
    const fn new(
        table: char,
        number: u8,
        fault: &'static str,
        by: &'static [(Target, &'static str)],
    ) -> Self {
        Self { table, number, topology: Topology::Single, fault, by, not_here: "" }
    }

    pub(super) fn name(&self) -> String {
        format!("{}{}", self.table, self.number)
    }

    const fn part(self, not_here: &'static str) -> Self {
        Self { not_here, ..self }
    }

    const fn on(self, topology: Topology) -> Self {
        Self { topology, ..self }
    }
}

/// All of them, in the order of the tables.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    [locks::LOCKS, deferral::DEFERRAL, quotas::QUOTAS].into_iter().flatten()
}
