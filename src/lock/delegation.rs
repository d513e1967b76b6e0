//! Delegation: locks that another service holds for this request.
//!
//! A request under a lock may call another service, and that service's `LockLayer` may ask for the
//! same lock. Without delegation, the two would wait for each other. The caller therefore adds a
//! header to its call, signed with a secret that both services share.
//!
//! The header states the validity time that the caller's lock had when it was signed. It is not a
//! lease: it is not renewed, and the receiver does not learn that the caller lost or released the
//! lock earlier. It contains the lock's key, fence and end, but not its token, so a reader of the
//! header cannot release the lock. A reader can send it again until it ends, so it must only travel
//! over trusted connections.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::time::Instant;

use super::held_lock::{DelegatedLock, HeldLock};
use crate::{
    error::{Error, expect_setting},
    gate::{GateRequest, REPLAY_HEADER},
    key::{Key, hex},
    store::{LockMode, Store},
};

/// Header with the value `2;<store>;<mode>;<fence>;<end>;<key>;<mac>`.
///
/// - `store`: identity of the store
/// - `mode`: `x`, `s`, or `p` with the number of permits
/// - `end`: Unix milliseconds
/// - `mac`: HMAC-SHA256 in hex
const DELEGATION_HEADER: &str = "lockgate-held";

/// Most delegation headers of one request that are read.
const MAX_DELEGATION_HEADERS: usize = 32;

/// Shortest secret in bytes: the length of the hash.
const MIN_SECRET_LEN: usize = 32;

/// Secret that services share, so that one can trust another's delegations and runs.
///
/// ```
/// # fn from_the_environment() -> Vec<u8> { vec![7; 32] }
/// use lockgate::SharedSecret;
///
/// let secret = SharedSecret::new(from_the_environment());
/// ```
#[derive(Clone)]
pub struct SharedSecret(Arc<[u8]>);

impl SharedSecret {
    /// Creates a secret from at least 32 random bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer: a short secret can be guessed, and with it every lock can be passed. For
    /// a secret from the environment use [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        expect_setting(Self::try_new(secret))
    }

    /// Like [`new`](Self::new), for a secret from the environment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if there are fewer than 32 bytes.
    pub fn try_new(secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        let secret = secret.as_ref();
        if secret.len() < MIN_SECRET_LEN {
            return Err(Error::setting(format!(
                "SharedSecret::new: needs at least {MIN_SECRET_LEN} bytes from a random source, \
                 not {}",
                secret.len()
            )));
        }
        Ok(Self(secret.into()))
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    fn mac(&self, text: &str) -> Hmac<Sha256> {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in ["lockgate-held", text] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl HeldLock {
    /// Returns the name and value of a header that delegates this lock to another service.
    ///
    /// Send it with calls to a service with the same secret in
    /// [`trust_delegation`](crate::lock::LockLayer::trust_delegation) of its `LockLayer`: the calls
    /// then run without a lock of their own. It is valid for as long as the lock is certain now, at
    /// most a lease; sign a new one for a later call. The clocks of both services count, so they
    /// should differ by far less than the lease.
    ///
    /// Returns `None` in these cases:
    ///
    /// - The lock was lost or released.
    /// - The request was admitted without a lock.
    /// - The lock is not in this store: the same server, database and namespace, through any
    ///   handle.
    #[must_use]
    pub fn delegation_header(
        &self,
        store: &Store,
        secret: &SharedSecret,
    ) -> Option<(&'static str, String)> {
        self.delegation_header_at(store, secret, SystemTime::now())
    }

    fn delegation_header_at(
        &self,
        store: &Store,
        secret: &SharedSecret,
        now: SystemTime,
    ) -> Option<(&'static str, String)> {
        let left = Some(self.remaining()).filter(|left| !left.is_zero())?;
        let (fence, mode) =
            (self.fence()?, self.mode().filter(|_| self.is_in_store(store) == Some(true))?);
        let end = now.checked_add(left)?.duration_since(UNIX_EPOCH).ok()?.as_millis();
        let (space, mode) = (store.backend().identities().pop()?, encode_mode(mode));
        let text = format!("2;{space};{mode};{fence};{end};{}", self.key());
        let mac = secret.mac(&text).finalize().into_bytes();
        Some((DELEGATION_HEADER, format!("{text};{}", hex(&mac))))
    }
}

/// Headers that were removed from a request, kept for inner layers.
#[derive(Clone)]
struct StrippedHeaders {
    /// Values of the delegation headers.
    delegations: Arc<[String]>,
    /// Value of the replay header.
    replay: Option<Arc<str>>,
    /// True if the sender is trusted because of a delegation; the handler must check the replay
    /// header.
    is_trusted: bool,
}

/// Removes the delegation and replay headers from a request and keeps them for the layers.
///
/// A handler that forwards its headers would forward these too, and no inner service must take a
/// forged one for a trusted one.
pub(super) fn strip_headers<V: GateRequest>(view: &mut V) {
    // Usually there is neither: one lookup for both.
    if !view.has_any_header(&[DELEGATION_HEADER, REPLAY_HEADER]) {
        return;
    }
    // Headers that an outer layer has received and verified remain in force.
    let before = view.extension::<StrippedHeaders>();
    if before.as_ref().is_some_and(|before| before.is_trusted)
        && view.header_values(DELEGATION_HEADER).is_empty()
    {
        return;
    }
    let text = |field: &&[u8]| str::from_utf8(field).ok().map(str::to_owned);
    let held = view
        .header_values(DELEGATION_HEADER)
        .iter()
        .take(MAX_DELEGATION_HEADERS)
        .filter_map(text)
        .collect();
    let run = view.header_values(REPLAY_HEADER).iter().find_map(text).map(Arc::from);
    view.set_header(DELEGATION_HEADER, None);
    view.set_header(REPLAY_HEADER, None);
    view.insert_extension(StrippedHeaders { delegations: held, replay: run, is_trusted: false });
}

/// Returns true if the request claims to be a run and its sender is not yet trusted.
pub(super) fn has_untrusted_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<StrippedHeaders>()
        .is_some_and(|received| received.replay.is_some() && !received.is_trusted)
}

/// Returns true if the request claims to be a run and its sender is trusted.
pub(super) fn has_trusted_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<StrippedHeaders>()
        .is_some_and(|received| received.replay.is_some() && received.is_trusted)
}

/// Restores the replay header, which the handler has to check; its sender is trusted because of a
/// delegation.
pub(super) fn restore_replay_header<V: GateRequest>(view: &mut V) {
    if let Some(mut received) = view.remove_extension::<StrippedHeaders>() {
        if let Some(run) = &received.replay {
            view.set_header(REPLAY_HEADER, Some(run));
        }
        received.is_trusted = true;
        view.insert_extension(received);
    }
}

/// Returns the locks in this store that the caller holds, according to a delegation signed with one
/// of these secrets. Before the first connection to the store, returns those that may be in it.
pub(super) fn verify_delegations<V: GateRequest>(
    view: &V,
    store: &Store,
    secrets: &[SharedSecret],
) -> Vec<HeldLock> {
    let now = SystemTime::now();
    let Some(received) = view.extension::<StrippedHeaders>() else { return Vec::new() };
    let (mut found, mut forged) = (Vec::new(), false);
    for field in received.delegations.iter() {
        match verify_signature(field, secrets) {
            Some(text) => found.extend(parse_claims(text, now)),
            None => forged = true,
        }
    }
    // One log record, for any number of headers.
    if forged {
        crate::throttle::throttled!(
            warn,
            node = %store.node(),
            "delegation header rejected: unknown secret or forged"
        );
    }
    found.retain(|held| held.is_in_store(store) != Some(false));
    found
}

fn verify_signature<'a>(field: &'a str, secrets: &[SharedSecret]) -> Option<&'a str> {
    let (text, mac) = field.rsplit_once(';')?;
    let mac = unhex(mac)?;
    // Each comparison takes constant time.
    secrets.iter().any(|secret| secret.mac(text).verify_slice(&mac).is_ok()).then_some(text)
}

fn parse_claims(text: &str, now: SystemTime) -> Option<HeldLock> {
    let mut parts = text.splitn(6, ';');
    let mut part = || parts.next();
    let ("2", space, mode, fence, end, key) =
        (part()?, part()?, part()?, part()?, part()?, part()?)
    else {
        return None;
    };
    let mode = parse_mode(mode)?;
    let end = UNIX_EPOCH.checked_add(Duration::from_millis(end.parse().ok()?))?;
    let until = Instant::now().checked_add(end.duration_since(now).ok()?)?;
    let fence = fence.parse().ok()?;
    let said = DelegatedLock { store_identity: space.into(), fence, mode, expires_at: until };
    Some(HeldLock::delegated(Key::from_store(key), said))
}

fn encode_mode(mode: LockMode) -> String {
    match mode {
        LockMode::Exclusive | LockMode::Shared => mode.wire_letter().to_owned(),
        LockMode::Permits(most) => format!("{}{most}", mode.wire_letter()),
    }
}

fn parse_mode(text: &str) -> Option<LockMode> {
    match text {
        "x" => Some(LockMode::Exclusive),
        "s" => Some(LockMode::Shared),
        _ => {
            let most = text.strip_prefix('p')?.parse().ok()?;
            (most > 0).then_some(LockMode::Permits(most))
        }
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
