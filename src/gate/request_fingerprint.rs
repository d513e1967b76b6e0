//! The fingerprint of a request: what tells whether another one under its `Idempotency-Key` is the same.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::key::{digest_parts, hex};

/// The fingerprint of a request that runs at once, taken while its handler reads the body: nothing is kept of
/// that, and nobody waits for it. If the handler leaves any of it, or it is too long, there is none.
#[derive(Clone)]
pub struct RequestFingerprint(Arc<Inner>);

struct Inner {
    method: String,
    target: String,
    state: Mutex<FingerprintState>,
}

enum FingerprintState {
    /// What was read so far, and how much more may come.
    Hashing(Sha256, usize),
    Finished([u8; 32]),
    TooLong,
    /// It broke off before its end.
    Truncated,
}

impl RequestFingerprint {
    /// Of a body of at most so many bytes.
    pub(crate) fn new(method: String, target: String, limit: usize) -> Self {
        let body = Mutex::new(FingerprintState::Hashing(Sha256::new(), limit));
        Self(Arc::new(Inner { method, target, state: body }))
    }

    /// Of a request whose body is there.
    pub(crate) fn compute(method: &str, target: &str, body: &[u8]) -> String {
        hash_request(method, target, &Sha256::digest(body).into())
    }

    /// The handler is about to see these bytes.
    pub fn update(&self, bytes: &[u8]) {
        let mut body = self.0.state.lock();
        let FingerprintState::Hashing(hash, left) = &mut *body else { return };
        match left.checked_sub(bytes.len()) {
            Some(rest) => {
                hash.update(bytes);
                *left = rest;
            }
            None => *body = FingerprintState::TooLong,
        }
    }

    /// There is no more.
    pub fn finish(&self) {
        let mut body = self.0.state.lock();
        if let FingerprintState::Hashing(hash, _) = &mut *body {
            *body = FingerprintState::Finished(std::mem::take(hash).finalize().into());
        }
    }

    /// It broke off, or its client was too slow: there is no more, and no end.
    pub fn mark_truncated(&self) {
        let mut body = self.0.state.lock();
        if !matches!(*body, FingerprintState::Finished(_)) {
            *body = FingerprintState::Truncated;
        }
    }

    /// True if the handler saw the body break off.
    pub(crate) fn is_truncated(&self) -> bool {
        matches!(*self.0.state.lock(), FingerprintState::Truncated)
    }

    /// `None` as long as the body has not been read to its end.
    pub(crate) fn finished_hex(&self) -> Option<String> {
        match &*self.0.state.lock() {
            FingerprintState::Finished(body) => {
                Some(hash_request(&self.0.method, &self.0.target, body))
            }
            FingerprintState::Hashing(..)
            | FingerprintState::TooLong
            | FingerprintState::Truncated => None,
        }
    }
}

fn hash_request(method: &str, target: &str, body: &[u8; 32]) -> String {
    hex(&digest_parts(&[method.as_bytes(), target.as_bytes(), body])[..16])
}

impl fmt::Debug for RequestFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFingerprint").field("method", &self.0.method).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_chunks(chunks: &[&[u8]]) -> RequestFingerprint {
        let print = RequestFingerprint::new("PUT".into(), "/x".into(), 4);
        chunks.iter().for_each(|chunk| print.update(chunk));
        print
    }

    #[test]
    fn it_is_the_same_however_the_body_comes() {
        let whole = RequestFingerprint::compute("PUT", "/x", b"abcd");
        for chunks in [&[&b"abcd"[..]][..], &[b"ab", b"cd"], &[b"", b"abc", b"d"]] {
            let print = of_chunks(chunks);
            assert_eq!(print.finished_hex(), None, "there may be more");
            print.finish();
            // Whatever comes after the end is none of it.
            print.update(b"e");
            print.finish();
            assert_eq!(print.finished_hex().as_ref(), Some(&whole), "{chunks:?}");
        }
        for other in [("POST", "/x", "abcd"), ("PUT", "/y", "abcd"), ("PUT", "/x", "abc")] {
            assert_ne!(RequestFingerprint::compute(other.0, other.1, other.2.as_bytes()), whole);
        }
    }

    #[test]
    fn a_long_body_has_none() {
        let print = of_chunks(&[b"abcd", b"e"]);
        print.finish();
        assert_eq!(print.finished_hex(), None);
    }
}
