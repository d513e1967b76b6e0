//! What operators do to a running service: actions with a permission, a reason and a record.
//!
//! Reads hang on the things themselves, such as [`LockRequest::inspect`](crate::LockRequest).
//! Actions go through [`Store::admin`](crate::Store::admin), which checks the
//! [`Permission`] of the [`Operator`] and writes the audit log. Console and command line use
//! nothing else.

mod admin_error;
mod admin_handle;
mod audit_log;
mod audit_record;
mod cancel_request;
mod job_actions;
mod lock_actions;
mod operator;
mod permission;
mod policy_actions;
mod process_actions;
mod queue_actions;
#[cfg(any(test, feature = "fsck"))]
mod store_actions;
#[cfg(test)]
mod tests;

pub use self::{
    admin_error::AdminError,
    admin_handle::Admin,
    audit_log::{AuditCursor, AuditPage},
    audit_record::{AuditOutcome, AuditRecord},
    operator::Operator,
    permission::Permission,
};
