//! Inspection of a store by operators, and the log of their actions.

mod audit_entry;
mod fleet_look;
mod fleet_report;
mod inquiry_listener;
mod inspection_backend;
mod lock_snapshot;
mod memory_audit_log;
mod process_report;
mod silent_node;
mod wait_report;

#[cfg(any(test, feature = "redis"))]
pub(super) use self::audit_entry::AUDIT_CAPACITY;
pub(crate) use self::{
    audit_entry::AuditEntry,
    inquiry_listener::{InquiryListener, MAX_REPORTS},
    inspection_backend::{InspectionBackend, MAX_LISTED_QUEUES},
    lock_snapshot::{
        HolderKind, LockSnapshot, MAX_SNAPSHOT_ENTRIES, SnapshotHolder, SnapshotWaiter, mode_name,
    },
    memory_audit_log::MemoryAuditLog,
};
#[cfg(feature = "redis")]
pub(super) use self::{
    audit_entry::MAX_AUDIT_PAGE, inquiry_listener::REPORT_TTL_MS,
    inspection_backend::MAX_REGISTERED_QUEUES,
};
pub use self::{
    fleet_report::FleetReport,
    process_report::{HoldReport, ProcessReport, WorkerReport},
    silent_node::SilentNode,
    wait_report::WaitReport,
};
pub(crate) use self::{fleet_report::FleetResponder, process_report::uptime};
