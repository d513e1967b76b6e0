//! `StoredPolicyChanges`: the document by which operators change policies while processes run.

/// Document of the namespace. Only the rate limiter knows its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredPolicyChanges {
    /// Number of the document; 0 if there was never one.
    pub(crate) version: u64,
    pub(crate) document: String,
}
