//! `RequestFingerprint`: a hash that tells a retry from another request with the same
//! `Idempotency-Key`.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::key::{digest_parts, hex};

/// Fingerprint of a direct run's request, computed while its handler reads the body, which is
/// neither stored nor awaited. There is no fingerprint if the handler does not read the whole body,
/// or if the body is too long.
#[derive(Clone)]
pub struct RequestFingerprint(Arc<Inner>);

struct Inner {
    method: String,
    target: String,
    state: Mutex<FingerprintState>,
}

enum FingerprintState {
    Hashing {
        hash: Sha256,
        /// Number of bytes that may follow.
        remaining: usize,
    },
    Finished([u8; 32]),
    TooLong,
    /// The body broke off.
    Truncated,
}

impl RequestFingerprint {
    /// Creates the fingerprint of a request with a body of at most `limit` bytes.
    pub(crate) fn new(method: String, target: String, limit: usize) -> Self {
        let state = Mutex::new(FingerprintState::Hashing { hash: Sha256::new(), remaining: limit });
        Self(Arc::new(Inner { method, target, state }))
    }

    /// Returns the fingerprint of a request with a complete body.
    pub(crate) fn compute(method: &str, target: &str, body: &[u8]) -> String {
        hash_request(method, target, &Sha256::digest(body).into())
    }

    /// Adds bytes that the handler is about to receive.
    pub fn update(&self, bytes: &[u8]) {
        let mut state = self.0.state.lock();
        let FingerprintState::Hashing { hash, remaining } = &mut *state else { return };
        match remaining.checked_sub(bytes.len()) {
            Some(remaining_after_update) => {
                hash.update(bytes);
                *remaining = remaining_after_update;
            }
            None => *state = FingerprintState::TooLong,
        }
    }

    /// Ends the body.
    pub fn finish(&self) {
        let mut state = self.0.state.lock();
        if let FingerprintState::Hashing { hash, .. } = &mut *state {
            *state = FingerprintState::Finished(std::mem::take(hash).finalize().into());
        }
    }

    /// Notes that the body broke off, or that the client was too slow.
    pub fn mark_truncated(&self) {
        let mut state = self.0.state.lock();
        if !matches!(*state, FingerprintState::Finished(_)) {
            *state = FingerprintState::Truncated;
        }
    }

    /// Returns true if the handler received a body that broke off.
    pub(crate) fn is_truncated(&self) -> bool {
        matches!(*self.0.state.lock(), FingerprintState::Truncated)
    }

    /// Returns the fingerprint, or `None` until the body has been read to its end.
    pub(crate) fn finished_hex(&self) -> Option<String> {
        match &*self.0.state.lock() {
            FingerprintState::Finished(body_hash) => {
                Some(hash_request(&self.0.method, &self.0.target, body_hash))
            }
            FingerprintState::Hashing { .. }
            | FingerprintState::TooLong
            | FingerprintState::Truncated => None,
        }
    }
}

fn hash_request(method: &str, target: &str, body_hash: &[u8; 32]) -> String {
    hex(&digest_parts(&[method.as_bytes(), target.as_bytes(), body_hash])[..16])
}

impl fmt::Debug for RequestFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFingerprint").field("method", &self.0.method).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint_of_chunks(chunks: &[&[u8]]) -> RequestFingerprint {
        let print = RequestFingerprint::new("PUT".into(), "/x".into(), 4);
        chunks.iter().for_each(|chunk| print.update(chunk));
        print
    }

    #[test]
    fn fingerprint_is_independent_of_chunking() {
        let whole = RequestFingerprint::compute("PUT", "/x", b"abcd");
        for chunks in [&[&b"abcd"[..]][..], &[b"ab", b"cd"], &[b"", b"abc", b"d"]] {
            let print = fingerprint_of_chunks(chunks);
            assert_eq!(print.finished_hex(), None, "there may be more");
            print.finish();
            // Data after `finish` is ignored.
            print.update(b"e");
            print.finish();
            assert_eq!(print.finished_hex().as_ref(), Some(&whole), "{chunks:?}");
        }
        for other in [("POST", "/x", "abcd"), ("PUT", "/y", "abcd"), ("PUT", "/x", "abc")] {
            assert_ne!(RequestFingerprint::compute(other.0, other.1, other.2.as_bytes()), whole);
        }
    }

    #[test]
    fn body_over_the_limit_has_no_fingerprint() {
        let print = fingerprint_of_chunks(&[b"abcd", b"e"]);
        print.finish();
        assert_eq!(print.finished_hex(), None);
    }
}
