//! `Keyring`: the keys, and sealing and opening with them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use chacha20poly1305::{
    XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Generate as _, KeyInit as _, Payload},
};
use parking_lot::RwLock;

use super::{FORMAT_VERSION, SEALED_MARKER, SealContext, UnsealError};
use crate::{
    error::{Error, expect_setting},
    store::Store,
};

/// Length of a nonce in bytes; random ones of this length do not collide.
const NONCE_LEN: usize = 24;

/// Longest id of a key, in bytes.
const MAX_KEY_ID_LEN: usize = 32;

/// Keys that seal stored requests, responses and task payloads.
///
/// One key seals; others only open bytes that they have sealed before. To change keys so that each
/// job can always be opened:
///
/// 1. Give every process the new key as a [decryption key](Keyring::with_decryption_key).
/// 2. Let every process seal with the new key, and keep the old one as a decryption key.
/// 3. Remove the old key once everything that it sealed has been deleted: by default, a week after
///    its last job has ended.
///
/// A process that lacks the key of a job leaves it to the others: the job stays queued, uncharged,
/// with the reason `no key`.
///
/// ```
/// # let (old, new) = ([1; 32], [2; 32]);
/// use lockgate::{Keyring, Store};
///
/// let keyring = Keyring::new("2026-11", new).with_decryption_key("2026-05", old);
/// let store = Store::memory().with_keyring(keyring);
/// ```
#[derive(Clone)]
pub struct Keyring(Arc<SealingKeys>);

#[derive(Clone)]
struct SealingKeys {
    sealing_key_id: String,
    ciphers: BTreeMap<String, XChaCha20Poly1305>,
    requires_sealed: bool,
}

impl Keyring {
    /// Creates a keyring that seals and opens with this key, 32 random bytes. The id is stored
    /// beside the sealed bytes and is not secret.
    ///
    /// # Panics
    ///
    /// If the id is empty, longer than 32 bytes, or not printable ASCII. For an id from a
    /// configuration use [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(id: &str, key: [u8; 32]) -> Self {
        expect_setting(Self::try_new(id, key))
    }

    /// Like [`new`](Self::new), for an id from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the id is empty, longer than 32 bytes, or not
    /// printable ASCII.
    pub fn try_new(id: &str, key: [u8; 32]) -> Result<Self, Error> {
        let keys = SealingKeys {
            sealing_key_id: id.to_owned(),
            ciphers: BTreeMap::new(),
            requires_sealed: false,
        };
        Self(Arc::new(keys)).try_with_decryption_key(id, key)
    }

    /// Adds a key that only opens.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and if there is already a key with this id. For an id from a
    /// configuration use [`try_with_decryption_key`](Self::try_with_decryption_key).
    #[must_use]
    pub fn with_decryption_key(self, id: &str, key: [u8; 32]) -> Self {
        expect_setting(self.try_with_decryption_key(id, key))
    }

    /// Like [`with_decryption_key`](Self::with_decryption_key), for an id from a configuration.
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new), and if there is already a key with this id.
    pub fn try_with_decryption_key(self, id: &str, key: [u8; 32]) -> Result<Self, Error> {
        if !(1..=MAX_KEY_ID_LEN).contains(&id.len()) || !id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::setting(format!(
                "Keyring: the id of a key has 1 to {MAX_KEY_ID_LEN} printable ASCII characters"
            )));
        }
        let mut keys = Arc::unwrap_or_clone(self.0);
        let replaced = keys.ciphers.insert(id.to_owned(), XChaCha20Poly1305::new(&key.into()));
        if replaced.is_some() {
            return Err(Error::setting(format!("Keyring: two keys have the id {id}")));
        }
        Ok(Self(Arc::new(keys)))
    }

    /// Treats unsealed bytes as corrupt.
    ///
    /// Default: they are read, so that jobs and tasks stored before there was a keyring still run.
    /// Set it once those have ended: until then, a process with write access to the store can add
    /// requests to it.
    #[must_use]
    pub fn require_sealed(self) -> Self {
        let mut keys = Arc::unwrap_or_clone(self.0);
        keys.requires_sealed = true;
        Self(Arc::new(keys))
    }

    #[expect(clippy::expect_used, reason = "sealing fails above 256 GB only")]
    pub(super) fn seal(&self, context: SealContext<'_>, plain: &[u8]) -> Bytes {
        let SealingKeys { sealing_key_id: key_id, ciphers, .. } = &*self.0;
        let nonce = XNonce::generate();
        let aad = associated_data(key_id, context);
        let cipher = &ciphers[key_id];
        let sealed = cipher.encrypt(&nonce, Payload { msg: plain, aad: &aad });
        // Sealing fails only above 256 GiB.
        let sealed = sealed.expect("a stored request is below the limit of the cipher");
        let mut out = Vec::with_capacity(3 + key_id.len() + NONCE_LEN + sealed.len());
        out.extend_from_slice(&[SEALED_MARKER, FORMAT_VERSION, key_id_len(key_id)]);
        out.extend_from_slice(key_id.as_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        out.into()
    }

    pub(super) fn open(
        &self,
        context: SealContext<'_>,
        stored: &[u8],
    ) -> Result<Bytes, UnsealError> {
        let SealedParts { key_id, nonce, ciphertext } = parse_sealed(stored)?;
        let cipher = self.0.ciphers.get(key_id).ok_or(UnsealError::UnknownKey)?;
        let aad = associated_data(key_id, context);
        let plain = cipher.decrypt(&nonce, Payload { msg: ciphertext, aad: &aad });
        plain.map(Bytes::from).map_err(|_| UnsealError::Corrupt)
    }

    pub(super) fn accept_unsealed(&self, stored: &Bytes) -> Result<Bytes, UnsealError> {
        if self.0.requires_sealed { Err(UnsealError::Corrupt) } else { Ok(stored.clone()) }
    }
}

/// Parts of sealed bytes.
struct SealedParts<'a> {
    key_id: &'a str,
    nonce: XNonce,
    /// Ciphertext with its tag.
    ciphertext: &'a [u8],
}

fn parse_sealed(stored: &[u8]) -> Result<SealedParts<'_>, UnsealError> {
    let corrupt = UnsealError::Corrupt;
    let [SEALED_MARKER, version, id_length, body @ ..] = stored else { return Err(corrupt) };
    match *version {
        FORMAT_VERSION => {}
        newer if newer > FORMAT_VERSION => return Err(UnsealError::NewerVersion),
        _ => return Err(corrupt),
    }
    let (key_id, body) = body.split_at_checked(usize::from(*id_length)).ok_or(corrupt)?;
    let (nonce, ciphertext) = body.split_first_chunk::<NONCE_LEN>().ok_or(corrupt)?;
    let key_id = str::from_utf8(key_id).map_err(|_| corrupt)?;
    Ok(SealedParts { key_id, nonce: (*nonce).into(), ciphertext })
}

/// Returns the associated data: the context that the bytes are bound to. Each part is preceded by
/// its length, so that parts cannot be confused.
fn associated_data(key_id: &str, context: SealContext<'_>) -> Vec<u8> {
    let mut aad = vec![SEALED_MARKER, FORMAT_VERSION];
    for part in ["lockgate", key_id, context.kind, context.id, context.parent_key] {
        aad.extend_from_slice(&(part.len() as u64).to_be_bytes());
        aad.extend_from_slice(part.as_bytes());
    }
    aad
}

fn key_id_len(id: &str) -> u8 {
    u8::try_from(id.len()).unwrap_or(u8::MAX)
}

/// Keyring of a store handle and its clones.
#[derive(Default)]
struct StoreKeyring(RwLock<Option<Keyring>>);

pub(super) fn for_store(store: &Store) -> Option<Keyring> {
    store.extension::<StoreKeyring>().0.read().clone()
}

impl Store {
    /// Sets the keyring of this handle and all of its clones. It seals stored deferred requests,
    /// their responses and the payloads of [queues](crate::queue), and opens those of other
    /// processes. A second call changes the keys from then on.
    ///
    /// Every process that runs these requests and tasks, or serves their responses, needs the keys
    /// too.
    ///
    /// # Data that stay readable
    ///
    /// - Names of locks and queues, ids, owners, times and states. An application should hash keys
    ///   that are secret themselves.
    /// - Unique keys of tasks, and the reasons of their failures.
    /// - The fingerprint of a request with an `Idempotency-Key`: a hash without a key over method,
    ///   target and body. A reader of the store can use it to test guesses of a small body.
    ///
    /// An id is the address of a stored response, which this service opens for any client that asks
    /// for it there. If others can read the store, or a copy of it, restrict the viewers of a
    /// status ([`StatusResource::visible_to`](crate::defer::StatusResource)). A process with write
    /// access to the store can also change a request's owner there.
    #[must_use]
    pub fn with_keyring(self, keyring: Keyring) -> Self {
        *self.extension::<StoreKeyring>().0.write() = Some(keyring);
        self
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opens: Vec<_> = self.0.ciphers.keys().collect();
        f.debug_struct("Keyring")
            .field("seals", &self.0.sealing_key_id)
            .field("opens", &opens)
            .field("only_sealed", &self.0.requires_sealed)
            .finish()
    }
}
