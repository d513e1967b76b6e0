//! Inspection of a store by operators, and the log of their actions.

mod audit_entry;
mod inspection_backend;
mod memory_audit_log;

pub(crate) use self::{
    audit_entry::AuditEntry,
    inspection_backend::{InspectionBackend, MAX_LISTED_QUEUES},
    memory_audit_log::MemoryAuditLog,
};
#[cfg(feature = "redis")]
pub(super) use self::{
    audit_entry::{AUDIT_CAPACITY, MAX_AUDIT_PAGE},
    inspection_backend::MAX_REGISTERED_QUEUES,
};
