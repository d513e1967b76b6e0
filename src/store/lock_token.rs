//! `LockToken`: identity of one acquisition of a lock, or of one run of a job.

use std::{fmt, sync::Arc};

use super::node_id::NodeId;
use crate::key::LogHash;

/// Identity of an acquisition: `<nonce>:<node>`, both random hex. It is secret: never logged, never
/// sent to a client.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockToken(Arc<str>);

impl LockToken {
    #[expect(clippy::indexing_slicing, reason = "a nonce and a node have 49 bytes")]
    pub(crate) fn new(node: &NodeId) -> Self {
        let mut nonce = [0; uuid::fmt::Simple::LENGTH];
        let nonce: &str = uuid::Uuid::new_v4().simple().encode_lower(&mut nonce);
        let parts = [nonce.as_bytes(), b":", node.as_str().as_bytes()];
        // Nonce and node take 49 bytes. Writing into a buffer on the stack leaves one copy, into
        // the `Arc`.
        let mut text = [0; 64];
        let length = parts.iter().fold(0, |offset, part| {
            text[offset..offset + part.len()].copy_from_slice(part);
            offset + part.len()
        });
        // All bytes are ASCII.
        Self(std::str::from_utf8(&text[..length]).unwrap_or_default().into())
    }

    /// Parses a token returned by the store.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
        let (nonce, node) = text.split_once(':')?;
        (is_hex(nonce) && is_hex(node)).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a digest of the token that other processes may see: it is not the token.
    pub(crate) fn digest(&self) -> String {
        LogHash(&self.0).to_string()
    }

    /// Returns the node part. Messages for this token go to that node's channel.
    pub(crate) fn node(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, node)| node)
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
