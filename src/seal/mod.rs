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
mod sealing;
#[cfg(all(test, feature = "seal"))]
mod tests;

#[cfg(feature = "seal")]
pub use self::keyring::Keyring;
#[cfg(feature = "seal")]
use self::sealing::{FORMAT_VERSION, SEALED_MARKER};
pub(crate) use self::sealing::{SealContext, UnsealError, open, seal};
