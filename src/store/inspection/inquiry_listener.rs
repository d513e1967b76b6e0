//! [`InquiryListener`]: receiver of messages that operators cause.

use crate::key::Key;

/// Life of the answers to an inquiry, in milliseconds. An inquiry ends within a second.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "a TTL of Redis"))]
pub(crate) const REPORT_TTL_MS: u64 = 10_000;

/// Most answers to an inquiry.
pub(crate) const MAX_REPORTS: u64 = 256;

/// Receiver of operators' messages in a process. It must not block.
pub(crate) trait InquiryListener: Send + Sync {
    /// Answers an inquiry, about one lock or about everything.
    fn on_inquiry(&self, inquiry: &str, lock: Option<&Key>);
    /// Checks the leases of this process, since an operator has taken one of them.
    fn on_forced_release(&self);
}
