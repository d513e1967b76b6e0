//! What comes along with a stored request that is none of its fields.

use bytes::Bytes;

/// Reads one thing of a request when it is stored: who the user was, say. What brings it back is the
/// worker's.
pub(in crate::defer) trait Carry<N: ?Sized>: Send + Sync {
    /// The same in every process and version.
    fn name(&self) -> &str;

    /// `None`: this request has none.
    fn pick(&self, request: &N) -> Option<Bytes>;
}

/// Names and what was read.
pub(in crate::defer) type Carried = Vec<(String, Bytes)>;
