//! `InspectionBackend` for `MemoryBackend`.

use std::{collections::VecDeque, time::Duration};

use super::{
    super::{
        backend::StoreFuture,
        inspection::{AuditEntry, InspectionBackend, LockSnapshot, MAX_LISTED_QUEUES, MAX_REPORTS},
        wakeup_message::WakeupMessage,
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
        initial: String,
        finished: String,
    ) -> StoreFuture<'_, bool> {
        ready_ok(self.audit_log.lock().replace(number, &initial, finished))
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

    fn list_registered_workers(&self) -> StoreFuture<'_, Vec<(String, Duration)>> {
        let now_ms = self.clock.now_us() / 1_000;
        let workers = self.live_workers.lock();
        let workers = workers.iter().map(|(node, ends_ms)| {
            (node.to_string(), Duration::from_millis(ends_ms.saturating_sub(now_ms)))
        });
        ready_ok(workers.collect())
    }

    fn count_live_workers(&self) -> StoreFuture<'_, u64> {
        let now_ms = self.clock.now_us() / 1_000;
        let workers = self.live_workers.lock();
        ready_ok(workers.values().filter(|ends_ms| **ends_ms > now_ms).count() as u64)
    }

    fn inspect_lock(&self, key: Key) -> StoreFuture<'_, LockSnapshot> {
        ready_ok(self.with_lock(&key, |transaction| transaction.snapshot()))
    }

    #[expect(
        clippy::redundant_closure_for_method_calls,
        reason = "the method is not general over the lifetime of its transaction"
    )]
    fn force_release(&self, key: Key) -> StoreFuture<'_, usize> {
        ready_ok(self.with_lock(&key, |transaction| transaction.force_release()))
    }

    fn cancel_run(&self, id: String) -> StoreFuture<'_, ()> {
        self.pubsub.broadcast(&WakeupMessage::CancelRun(id.into()));
        ready_ok(())
    }

    fn ask_fleet(&self, inquiry: String, lock: Option<Key>) -> StoreFuture<'_, u64> {
        let message = WakeupMessage::FleetInquiry(inquiry.into(), lock);
        ready_ok(self.pubsub.broadcast(&message) as u64)
    }

    fn append_report(&self, inquiry: String, report: String) -> StoreFuture<'_, ()> {
        let mut reports = self.fleet_reports.lock();
        let is_full = |reports: &VecDeque<_>| reports.len() as u64 >= MAX_REPORTS;
        // Those of earlier inquiries make room. An inquiry keeps its first ones, as on Redis.
        while is_full(&reports) && reports.front().is_some_and(|(asked, _)| *asked != inquiry) {
            reports.pop_front();
        }
        if !is_full(&reports) {
            reports.push_back((inquiry, report));
        }
        ready_ok(())
    }

    fn read_reports(&self, inquiry: String, skipped: usize) -> StoreFuture<'_, Vec<String>> {
        let reports = self.fleet_reports.lock();
        let answers = reports.iter().filter(|(asked, _)| *asked == inquiry);
        ready_ok(answers.skip(skipped).map(|(_, report)| report.clone()).collect())
    }
}
