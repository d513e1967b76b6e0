//! Inspection of a store by operators, and the log of their actions.

mod audit_entry;
mod inspection_backend;
mod memory_audit_log;

#[cfg(feature = "redis")]
pub(super) use self::audit_entry::AUDIT_CAPACITY;
pub(super) use self::audit_entry::MAX_AUDIT_PAGE;
pub(crate) use self::{
    audit_entry::AuditEntry, inspection_backend::InspectionBackend,
    memory_audit_log::MemoryAuditLog,
};
