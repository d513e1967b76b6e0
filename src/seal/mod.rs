//! Sealing: encryption of stored requests, responses and task payloads.
//!
//! [`Store::with_keyring`](crate::Store::with_keyring) gives a store handle a [`Keyring`]. From
//! then on this process seals the deferred requests and task payloads that it stores
//! (XChaCha20-Poly1305 with a random nonce for each), and opens those that it reads. The store's
//! scripts handle sealed bytes only. Sealed bytes are bound to one job, its lock and one of the
//! kinds request and response, or to one task and its queue. Moved elsewhere, they cannot be
//! opened.
//!
//! ```text
//! 0 | version = 1 | length of the key's id | the key's id | nonce, 24 bytes | ciphertext and tag
//! ```
//!
//! Unsealed bytes start with a version from 1 on, or as JSON does, so the first byte tells them
//! apart.

#[cfg(feature = "seal")]
mod keyring;
#[cfg(all(test, feature = "seal"))]
mod tests;

use std::fmt;

use bytes::Bytes;

#[cfg(feature = "seal")]
pub use self::keyring::Keyring;
use crate::store::Store;

/// First byte of sealed bytes.
const SEALED_MARKER: u8 = 0;

/// Version of the format that is written.
const FORMAT_VERSION: u8 = 1;

/// Context that sealed bytes are bound to.
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "nothing is sealed"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SealContext<'a> {
    /// Id of the job or the task.
    pub(crate) id: &'a str,
    /// Name in the store of the job's lock or the task's queue.
    pub(crate) parent_key: &'a str,
    /// `request`, `response` or `task`.
    pub(crate) kind: &'static str,
}

/// Reason why bytes cannot be opened.
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "nothing is sealed"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnsealError {
    /// Sealed by a newer version; another process can open them.
    NewerVersion,
    /// This process does not have the key; another one may.
    UnknownKey,
    /// Modified, moved elsewhere, or not sealed although the keyring requires it.
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

/// Seals bytes if the store has a keyring.
pub(crate) fn seal(store: &Store, place: SealContext<'_>, plain: Bytes) -> Bytes {
    #[cfg(feature = "seal")]
    if let Some(ring) = keyring::for_store(store) {
        return ring.seal(place, &plain);
    }
    let _ = (store, place);
    plain
}

/// Opens bytes that [`seal`] returned. Unsealed bytes are returned unchanged, unless the keyring
/// refuses them.
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
