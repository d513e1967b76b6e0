//! `InspectionBackend` for `RedisBackend`: each method calls the operation in its own file.

use super::super::RedisBackend;
use crate::{
    key::Key,
    store::{
        backend::StoreFuture,
        inspection::{AuditEntry, InspectionBackend},
    },
};

impl InspectionBackend for RedisBackend {
    fn append_audit_record(&self, record: String) -> StoreFuture<'_, u64> {
        Box::pin(self.append_to_audit_log(record))
    }

    fn replace_audit_record(
        &self,
        number: u64,
        begun: String,
        ended: String,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.replace_in_audit_log(number, begun, ended))
    }

    fn read_audit_records(
        &self,
        before: u64,
        max_records: usize,
    ) -> StoreFuture<'_, Vec<AuditEntry>> {
        Box::pin(self.read_audit_log(before, max_records))
    }

    fn register_queue(&self, name: Key) -> StoreFuture<'_, ()> {
        Box::pin(self.add_queue_name(name))
    }

    fn list_queues(&self) -> StoreFuture<'_, Vec<Key>> {
        Box::pin(self.read_queue_names())
    }

    fn count_live_workers(&self) -> StoreFuture<'_, u64> {
        Box::pin(self.count_registered_workers())
    }
}
