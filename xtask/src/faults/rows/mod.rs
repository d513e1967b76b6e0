//! Numbered faults, and the tests that provoke them.
//!
//! `l` is the table of locks, `d` that of deferred requests, `q` that of the guarantees of quotas.
//! A test is named by a substring of its path, as in a filter of libtest. A row without tests gives
//! the reason why one machine cannot provoke the fault, and the substitute.

mod deferral;
mod locks;
mod quotas;

/// Program that contains a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TestTarget {
    /// Unit tests of the library.
    Unit,
    Scenarios,
    Faults,
    Deferral,
    Quorum,
    /// Tests in a separate process, whose log is checked.
    Warnings,
}

impl TestTarget {
    pub(super) fn binary_name(self) -> &'static str {
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

/// Deployment of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StoreTopology {
    Single,
    Sentinel,
    Cluster,
}

impl StoreTopology {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

/// Numbered fault.
#[derive(Debug)]
pub(super) struct FaultRow {
    pub(super) table: char,
    pub(super) number: u8,
    pub(super) topology: StoreTopology,
    pub(super) fault: &'static str,
    pub(super) tests: &'static [(TestTarget, &'static str)],
    /// Part of the fault that cannot be provoked here, and its substitute.
    pub(super) limitation: &'static str,
}

impl FaultRow {
    const fn new(
        table: char,
        number: u8,
        fault: &'static str,
        tests: &'static [(TestTarget, &'static str)],
    ) -> Self {
        Self { table, number, topology: StoreTopology::Single, fault, tests, limitation: "" }
    }

    pub(super) fn id(&self) -> String {
        format!("{}{}", self.table, self.number)
    }

    const fn with_limitation(self, limitation: &'static str) -> Self {
        Self { limitation, ..self }
    }

    const fn with_topology(self, topology: StoreTopology) -> Self {
        Self { topology, ..self }
    }
}

/// All rows, in the order of the tables.
pub(super) fn all_rows() -> impl Iterator<Item = &'static FaultRow> {
    [locks::LOCK_ROWS, deferral::JOB_ROWS, quotas::QUOTA_ROWS].into_iter().flatten()
}
