//! At rest: what is stored of requests, of their responses and of tasks, of no use without a key.
//!
//! [`Store::with_keyring`](crate::Store::with_keyring) gives a store handle a [`Keyring`]. From then on what
//! that process stores of deferred requests, and of the payloads of tasks, is sealed (XChaCha20-Poly1305, a
//! random nonce each), and what it reads is opened; the scripts of the store see neither. Sealed bytes belong
//! to one job, its lock, and one of the two kinds, request and response, or to one task and its queue: put
//! elsewhere, they do not open.
//!
//! ```text
//! 0 | version = 1 | length of the key's id | the key's id | nonce, 24 bytes | ciphertext and tag
//! ```
//!
//! What is not sealed begins with a version from 1 on, or as JSON does: the first byte tells.

#[cfg(feature = "seal")]
mod keyring;
#[cfg(all(test, feature = "seal"))]
mod tests;

use std::fmt;

use bytes::Bytes;

#[cfg(feature = "seal")]
pub use self::keyring::Keyring;
use crate::store::Store;

/// First byte of what is sealed.
const SEALED_MARKER: u8 = 0;

/// The form written by this version.
const FORMAT_VERSION: u8 = 1;

/// Where bytes belong.
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "nothing is sealed"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SealContext<'a> {
    /// Of the job, or the task.
    pub(crate) id: &'a str,
    /// What it waits for, as it is named in the store: the lock, or the task's queue.
    pub(crate) parent_key: &'a str,
    /// What of it: `request`, `response`, `task`.
    pub(crate) kind: &'static str,
}

/// Why bytes can't be opened.
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "nothing is sealed"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnsealError {
    /// Sealed by a newer version: somebody else can open it.
    NewerVersion,
    /// This process does not have the key: somebody else may.
    UnknownKey,
    /// Changed, put elsewhere, or not sealed where everything has to be.
    Corrupt,
}

impl fmt::Display for UnsealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NewerVersion => "sealed by a newer version",
            Self::UnknownKey => "sealed with a key that is not here",
            Self::Corrupt => "changed, put elsewhere, or not sealed",
        })
    }
}

/// Seals these bytes, if the store has a keyring.
pub(crate) fn seal(store: &Store, place: SealContext<'_>, plain: Bytes) -> Bytes {
    #[cfg(feature = "seal")]
    if let Some(ring) = keyring::for_store(store) {
        return ring.seal(place, &plain);
    }
    let _ = (store, place);
    plain
}

/// Opens what [`seal`] has made. What was stored before there was a keyring is given back as it is, unless
/// the keyring refuses it.
pub(crate) fn open(
    store: &Store,
    place: SealContext<'_>,
    stored: &Bytes,
) -> Result<Bytes, UnsealError> {
    let sealed = stored.first() == Some(&SEALED_MARKER);
    #[cfg(feature = "seal")]
    if let Some(ring) = keyring::for_store(store) {
        return if sealed { ring.open(place, stored) } else { ring.accept_unsealed(stored) };
    }
    let _ = (store, place);
    match stored.get(1) {
        _ if !sealed => Ok(stored.clone()),
        Some(&version) if version > FORMAT_VERSION => Err(UnsealError::NewerVersion),
        _ => Err(UnsealError::UnknownKey),
    }
}
