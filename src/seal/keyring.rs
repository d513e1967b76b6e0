//! The keys, and what is done with them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use chacha20poly1305::{
    XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Generate as _, KeyInit as _, Payload},
};
use parking_lot::RwLock;

use super::{FORMAT_VERSION, SEALED_MARKER, SealContext, UnsealError};
use crate::store::Store;

/// Length of a nonce: random ones of this length do not meet.
const NONCE_LEN: usize = 24;

/// Longest id of a key.
const MAX_KEY_ID_LEN: usize = 32;

/// The keys that stored requests, responses and tasks are sealed with.
///
/// One key seals; others are there to open what was sealed with them. To change keys without a job that
/// nobody can open: first give every process the new key as one that [opens](Keyring::with_decryption_key), then let it
/// seal and the old one open, and leave the old one away once nothing is kept any more that it has sealed
/// (by default, a week after its last job has ended). A process that meets a job whose key it does not
/// have leaves it to the others: it stays queued, uncharged, with the reason `no key`.
///
/// ```
/// # let (old, new) = ([1; 32], [2; 32]);
/// use lockgate::{Keyring, Store};
///
/// let store = Store::memory().with_keyring(Keyring::new("2026-11", new).with_decryption_key("2026-05", old));
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
    /// Seals, and opens, with this key: 32 bytes out of a random source. Its id is stored beside what it
    /// has sealed, and is no secret.
    ///
    /// # Panics
    ///
    /// If the id is empty, longer than 32 bytes, or not printable ASCII.
    #[must_use]
    pub fn new(id: &str, key: [u8; 32]) -> Self {
        let keys = SealingKeys {
            sealing_key_id: id.to_owned(),
            ciphers: BTreeMap::new(),
            requires_sealed: false,
        };
        Self(Arc::new(keys)).with_decryption_key(id, key)
    }

    /// Opens what was sealed with this key, too.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and if there is a key of this id already.
    #[must_use]
    pub fn with_decryption_key(self, id: &str, key: [u8; 32]) -> Self {
        assert!(
            (1..=MAX_KEY_ID_LEN).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()),
            "Keyring: the id of a key is 1 to {MAX_KEY_ID_LEN} printable ASCII characters"
        );
        let mut keys = Arc::unwrap_or_clone(self.0);
        let before = keys.ciphers.insert(id.to_owned(), XChaCha20Poly1305::new(&key.into()));
        assert!(before.is_none(), "Keyring: there are two keys of the id {id}");
        Self(Arc::new(keys))
    }

    /// Takes what is not sealed for broken. Default: it is read, so that what was stored before there was
    /// a keyring still runs. Set it once that is through: until then who can write to the store can put
    /// requests into it.
    #[must_use]
    pub fn require_sealed(self) -> Self {
        let mut keys = Arc::unwrap_or_clone(self.0);
        keys.requires_sealed = true;
        Self(Arc::new(keys))
    }

    #[expect(clippy::expect_used, reason = "it fails above 256 GB alone")]
    pub(super) fn seal(&self, place: SealContext<'_>, plain: &[u8]) -> Bytes {
        let SealingKeys { sealing_key_id: seals, ciphers: all, .. } = &*self.0;
        let nonce = XNonce::generate();
        let aad = associated_data(seals, place);
        let cipher = &all[seals];
        let sealed = cipher.encrypt(&nonce, Payload { msg: plain, aad: &aad });
        // Only what is longer than 256 GiB can't be.
        let sealed = sealed.expect("stored requests are short");
        let mut out = Vec::with_capacity(3 + seals.len() + NONCE_LEN + sealed.len());
        out.extend_from_slice(&[SEALED_MARKER, FORMAT_VERSION, key_id_len(seals)]);
        out.extend_from_slice(seals.as_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        out.into()
    }

    pub(super) fn open(&self, place: SealContext<'_>, stored: &[u8]) -> Result<Bytes, UnsealError> {
        let (id, nonce, sealed) = parse_sealed(stored)?;
        let cipher = self.0.ciphers.get(id).ok_or(UnsealError::UnknownKey)?;
        let aad = associated_data(id, place);
        let plain = cipher.decrypt(&nonce, Payload { msg: sealed, aad: &aad });
        plain.map(Bytes::from).map_err(|_| UnsealError::Corrupt)
    }

    pub(super) fn accept_unsealed(&self, stored: &Bytes) -> Result<Bytes, UnsealError> {
        if self.0.requires_sealed { Err(UnsealError::Corrupt) } else { Ok(stored.clone()) }
    }
}

/// The key's id, the nonce, and the rest.
fn parse_sealed(stored: &[u8]) -> Result<(&str, XNonce, &[u8]), UnsealError> {
    let broken = UnsealError::Corrupt;
    let [SEALED_MARKER, version, length, rest @ ..] = stored else { return Err(broken) };
    match *version {
        FORMAT_VERSION => {}
        newer if newer > FORMAT_VERSION => return Err(UnsealError::NewerVersion),
        _ => return Err(broken),
    }
    let (id, rest) = rest.split_at_checked(usize::from(*length)).ok_or(broken)?;
    let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>().ok_or(broken)?;
    let id = str::from_utf8(id).map_err(|_| broken)?;
    Ok((id, (*nonce).into(), sealed))
}

/// What is not in the bytes and yet belongs to them: each part with its length, so that none can pass for
/// a piece of the next.
fn associated_data(key_id: &str, place: SealContext<'_>) -> Vec<u8> {
    let mut aad = vec![SEALED_MARKER, FORMAT_VERSION];
    for part in ["lockgate", key_id, place.kind, place.id, place.parent_key] {
        aad.extend_from_slice(&(part.len() as u64).to_be_bytes());
        aad.extend_from_slice(part.as_bytes());
    }
    aad
}

fn key_id_len(id: &str) -> u8 {
    u8::try_from(id.len()).unwrap_or(u8::MAX)
}

/// The keyring of a store handle and its clones.
#[derive(Default)]
struct StoreKeyring(RwLock<Option<Keyring>>);

pub(super) fn for_store(store: &Store) -> Option<Keyring> {
    store.extension::<StoreKeyring>().0.read().clone()
}

impl Store {
    /// Seals what this handle, and every clone of it, stores of deferred requests, their responses and the payloads of
    /// [queues](crate::queue), and opens what others have sealed. Called again, it changes the keys from then on.
    ///
    /// Every process that runs these requests and tasks, or tells their responses, needs the keys too. What stays
    /// readable are names of locks and queues, unique keys of tasks and why they failed, ids, owners, times and
    /// states: keys that are secret themselves should be hashed by the application. Of a request with an
    /// `Idempotency-Key` so does a fingerprint, a hash without a key over method, target and body: whoever reads the
    /// store can test by it what a small body may have been.
    ///
    /// An id is the address of a stored response, which this service opens for whoever asks for it there: where others may
    /// read the store, or a copy of it, say who may see what ([`StatusGate::visible_to`](crate::defer::StatusGate)). Whoever may
    /// write to the store can also say there whose a request is.
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
