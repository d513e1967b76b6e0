//! [`AuditEntry`]: a stored record of the audit log.

/// Number of records that the audit log keeps. At 1 KiB each at most, it stays below 10 MiB.
pub(crate) const AUDIT_CAPACITY: u64 = 10_000;

/// Longest page of the audit log.
pub(crate) const MAX_AUDIT_PAGE: usize = 100;

/// Record of the audit log with its number, which grows, and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditEntry {
    pub(crate) number: u64,
    /// Time of the store in microseconds since 1970.
    pub(crate) recorded_us: u64,
    /// The record as JSON.
    pub(crate) record: String,
}

impl AuditEntry {
    /// Parses `<time us> <record>`.
    #[cfg(feature = "redis")]
    pub(crate) fn parse(number: u64, stored: &str) -> Option<Self> {
        let (time, record) = stored.split_once(' ')?;
        Some(Self { number, recorded_us: time.parse().ok()?, record: record.to_owned() })
    }
}
