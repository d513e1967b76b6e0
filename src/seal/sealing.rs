//! Sealing and opening of stored data, with or without a keyring.

use std::fmt;

use bytes::Bytes;

use crate::store::Store;

/// First byte of sealed bytes.
pub(super) const SEALED_MARKER: u8 = 0;

/// Version of the format that is written.
pub(super) const FORMAT_VERSION: u8 = 1;

/// Context that sealed bytes are bound to.
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "used with the feature `seal` only"))]
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
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "used with the feature `seal` only"))]
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
            Self::UnknownKey => "sealed with a key that this process lacks",
            Self::Corrupt => "modified, moved, or not sealed",
        })
    }
}

/// Seals bytes if the store has a keyring.
pub(crate) fn seal(store: &Store, context: SealContext<'_>, plain: Bytes) -> Bytes {
    #[cfg(feature = "seal")]
    if let Some(keyring) = super::keyring::for_store(store) {
        return keyring.seal(context, &plain);
    }
    let _ = (store, context);
    plain
}

/// Opens bytes that [`seal`] returned. Unsealed bytes are returned unchanged, unless the keyring
/// refuses them.
pub(crate) fn open(
    store: &Store,
    context: SealContext<'_>,
    stored: &Bytes,
) -> Result<Bytes, UnsealError> {
    let sealed = stored.first() == Some(&SEALED_MARKER);
    #[cfg(feature = "seal")]
    if let Some(keyring) = super::keyring::for_store(store) {
        return if sealed {
            keyring.open(context, stored)
        } else {
            keyring.accept_unsealed(stored)
        };
    }
    let _ = (store, context);
    match stored.get(1) {
        _ if !sealed => Ok(stored.clone()),
        Some(&version) if version > FORMAT_VERSION => Err(UnsealError::NewerVersion),
        _ => Err(UnsealError::UnknownKey),
    }
}
