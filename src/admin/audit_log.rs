//! [`AuditPage`]: pages of the audit log.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use super::audit_record::AuditRecord;
use crate::{
    error::{Error, ParseCursorError},
    store::Store,
};

/// Position in the audit log. The default is its newest record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCursor(u64);

impl fmt::Display for AuditCursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for AuditCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| ParseCursorError)
    }
}

impl Serialize for AuditCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Page of the audit log.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AuditPage {
    /// Records, the newest first.
    pub records: Vec<AuditRecord>,
    /// Start of the next page, of older records; `None` at the end.
    pub next: Option<AuditCursor>,
}

impl Store {
    /// Reads a page of the audit log, of at most 100 records. The log keeps the last 10,000 actions
    /// of operators, the refused ones included.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::Error> {
    /// use lockgate::{Store, admin::AuditCursor};
    ///
    /// let page = Store::memory().audit(AuditCursor::default(), 20).await?;
    /// assert!(page.records.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Of the [store](crate::ErrorKind).
    pub async fn audit(&self, from: AuditCursor, max_records: usize) -> Result<AuditPage, Error> {
        let entries = self.backend().read_audit_records(from.0, max_records).await?;
        let is_full = entries.len() >= max_records.min(100);
        let next = entries.last().filter(|entry| is_full && entry.number > 1);
        let next = next.map(|entry| AuditCursor(entry.number));
        let records = entries.into_iter().filter_map(|entry| {
            // A record of a newer version that cannot be parsed is left out.
            let record: AuditRecord = serde_json::from_str(&entry.record).ok()?;
            Some(AuditRecord { recorded_us: entry.recorded_us, ..record })
        });
        Ok(AuditPage { records: records.collect(), next })
    }
}
