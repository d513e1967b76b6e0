//! [`MemoryAuditLog`]: the audit log of the embedded store.

use std::collections::VecDeque;

use super::audit_entry::{AUDIT_CAPACITY, AuditEntry, MAX_AUDIT_PAGE};

/// The last records, the newest at the back.
#[derive(Debug, Default)]
pub(crate) struct MemoryAuditLog {
    entries: VecDeque<AuditEntry>,
    last: u64,
}

impl MemoryAuditLog {
    pub(crate) fn append(&mut self, record: String, recorded_us: u64) -> u64 {
        self.last += 1;
        self.entries.push_back(AuditEntry { number: self.last, recorded_us, record });
        if self.entries.len() as u64 > AUDIT_CAPACITY {
            self.entries.pop_front();
        }
        self.last
    }

    pub(crate) fn replace(&mut self, number: u64, initial: &str, finished: String) -> bool {
        let entry = self.entries.iter_mut().rev().find(|entry| entry.number == number);
        match entry.filter(|entry| entry.record == initial) {
            Some(entry) => {
                entry.record = finished;
                true
            }
            None => false,
        }
    }

    pub(crate) fn read(&self, before: u64, max_records: usize) -> Vec<AuditEntry> {
        let newest_first = self.entries.iter().rev();
        let page = newest_first.filter(|entry| before == 0 || entry.number < before);
        page.take(max_records.min(MAX_AUDIT_PAGE)).cloned().collect()
    }
}
