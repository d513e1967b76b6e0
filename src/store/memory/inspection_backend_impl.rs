//! `InspectionBackend` for `MemoryBackend`.

use super::{
    super::{
        backend::StoreFuture,
        inspection::{AuditEntry, InspectionBackend, MAX_LISTED_QUEUES},
    },
    MemoryBackend,
    memory_backend::ready_ok,
};
use crate::key::Key;

impl InspectionBackend for MemoryBackend {
    fn append_audit_record(&self, record: String) -> StoreFuture<'_, u64> {
        let now_us = self.clock.now_us();
        ready_ok(self.audit_log.lock().append(record, now_us))
    }

    fn replace_audit_record(
        &self,
        number: u64,
        begun: String,
        ended: String,
    ) -> StoreFuture<'_, bool> {
        ready_ok(self.audit_log.lock().replace(number, &begun, ended))
    }

    fn read_audit_records(
        &self,
        before: u64,
        max_records: usize,
    ) -> StoreFuture<'_, Vec<AuditEntry>> {
        ready_ok(self.audit_log.lock().read(before, max_records))
    }

    /// The embedded store knows its queues.
    fn register_queue(&self, _: Key) -> StoreFuture<'_, ()> {
        ready_ok(())
    }

    fn list_queues(&self) -> StoreFuture<'_, Vec<Key>> {
        let queues = self.task_queues.lock();
        ready_ok(queues.keys().take(MAX_LISTED_QUEUES).cloned().collect())
    }

    fn count_live_workers(&self) -> StoreFuture<'_, u64> {
        let now_ms = self.clock.now_us() / 1_000;
        let workers = self.live_workers.lock();
        ready_ok(workers.values().filter(|ends_ms| **ends_ms > now_ms).count() as u64)
    }
}
