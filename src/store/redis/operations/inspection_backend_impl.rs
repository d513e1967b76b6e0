//! `InspectionBackend` for `RedisBackend`: each method calls the operation in its own file.

use std::time::Duration;

use super::super::RedisBackend;
use crate::{
    key::Key,
    store::{
        backend::StoreFuture,
        inspection::{AuditEntry, InspectionBackend, LockSnapshot},
        wakeup_message::WakeupMessage,
    },
};

impl InspectionBackend for RedisBackend {
    fn append_audit_record(&self, record: String) -> StoreFuture<'_, u64> {
        Box::pin(self.append_to_audit_log(record))
    }

    fn replace_audit_record(
        &self,
        number: u64,
        initial: String,
        finished: String,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.replace_in_audit_log(number, initial, finished))
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

    fn list_registered_workers(&self) -> StoreFuture<'_, Vec<(String, Duration)>> {
        Box::pin(self.read_registered_workers())
    }

    fn count_live_workers(&self) -> StoreFuture<'_, u64> {
        Box::pin(self.count_registered_workers())
    }

    fn inspect_lock(&self, key: Key) -> StoreFuture<'_, LockSnapshot> {
        Box::pin(self.read_lock_snapshot(key))
    }

    fn force_release(&self, key: Key) -> StoreFuture<'_, usize> {
        Box::pin(self.force_lock_release(key))
    }

    fn cancel_run(&self, id: String) -> StoreFuture<'_, ()> {
        let text = WakeupMessage::encode_cancellation(&id);
        Box::pin(async move { self.publish_to_fleet(text).await.map(drop) })
    }

    fn ask_fleet(&self, inquiry: String, lock: Option<Key>) -> StoreFuture<'_, u64> {
        Box::pin(self.publish_to_fleet(WakeupMessage::encode_inquiry(&inquiry, lock.as_ref())))
    }

    fn append_report(&self, inquiry: String, report: String) -> StoreFuture<'_, ()> {
        Box::pin(self.append_fleet_report(inquiry, report))
    }

    fn read_reports(&self, inquiry: String, skipped: usize) -> StoreFuture<'_, Vec<String>> {
        Box::pin(self.read_fleet_reports(inquiry, skipped))
    }
}
