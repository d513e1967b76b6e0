//! Locks that another service has for this request.
//!
//! A request under a lock calls another service, whose own `LockLayer` asks for the same lock: without a
//! word about it the second would wait for the first, and the first for the second. The word is a header
//! field that the caller adds to its call and signs with a secret that both services know.
//!
//! It is a hint of how long the caller was sure of its lock when it signed, and no lease: it isn't renewed,
//! and nobody hears of it if the caller loses or gives back the lock before. It names the lock, its fence
//! and its end, and never the token, so whoever reads it can't release anything. Whoever can read it can
//! send it again until it ends: it belongs on connections within the house.

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
    gate::{GateRequest, REPLAY_HEADER},
    key::{Key, hex},
    store::{LockMode, Store},
};

/// The header. Its value is `2;<store>;<mode>;<fence>;<end, Unix milliseconds>;<key>;<HMAC-SHA256, hex>`: the store by its
/// identity, the mode as `x`, `s`, or `p` with the number of permits.
const DELEGATION_HEADER: &str = "lockgate-held";

/// Most fields of one request that are looked at.
const MAX_DELEGATION_HEADERS: usize = 32;

/// Shortest secret, in bytes: as long as the hash it goes into.
const MIN_SECRET_LEN: usize = 32;

/// What two services know, and nobody else, so that one takes the other's word for a lock.
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
    /// At least 32 bytes out of a random source.
    ///
    /// # Panics
    ///
    /// If there are fewer: they could be guessed, and locks walked through.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref();
        assert!(
            secret.len() >= MIN_SECRET_LEN,
            "SharedSecret::new: {} bytes; take {MIN_SECRET_LEN} or more out of a random source",
            secret.len()
        );
        Self(secret.into())
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
    /// Name and value of a header field for calls to a service of ours whose `LockLayer` has this secret
    /// as [`trust`](crate::lock::LockGate::trust_delegation): what it does for this request needs no lock of its own.
    /// `None` if the lock is lost, has been given back, was never had, or is not in this store: the same
    /// server, database and namespace, by whichever handle.
    ///
    /// The word is good for as long as the lock is sure now, at most a lease; sign anew for a later
    /// call. Both clocks count, so they should differ by far less than the lease.
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

/// Fields that were taken out of a request, for layers further in.
#[derive(Clone)]
struct StrippedHeaders {
    /// What it says of locks.
    delegations: Arc<[String]>,
    /// That it is a run.
    replay: Option<Arc<str>>,
    /// The service that says so is one of ours: the run is the handler's to check.
    is_trusted: bool,
}

/// Takes the fields out of the request's header: they are for layers, and a handler that passes on what it
/// gets would pass them on; and who has forged them must not be taken for one of ours further in.
pub(super) fn strip_headers<V: GateRequest>(view: &mut V) {
    // Mostly there are none: one look for both.
    if !view.has_any_header(&[DELEGATION_HEADER, REPLAY_HEADER]) {
        return;
    }
    // What a layer further out has received and believed stands.
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

/// Whether somebody says that it is a run who has not been believed yet.
pub(super) fn has_untrusted_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<StrippedHeaders>()
        .is_some_and(|received| received.replay.is_some() && !received.is_trusted)
}

/// Whether somebody says so who has been believed.
pub(super) fn has_trusted_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<StrippedHeaders>()
        .is_some_and(|received| received.replay.is_some() && received.is_trusted)
}

/// Gives the handler back that it is a run, which it has to check: who says so has been believed about a lock.
pub(super) fn restore_replay_header<V: GateRequest>(view: &mut V) {
    if let Some(mut received) = view.remove_extension::<StrippedHeaders>() {
        if let Some(run) = &received.replay {
            view.set_header(REPLAY_HEADER, Some(run));
        }
        received.is_trusted = true;
        view.insert_extension(received);
    }
}

/// The locks in this store of which one of these secrets says that the caller has them. Before the store was
/// reached for the first time, those that may be.
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
    // One line, however many he has sent.
    if forged {
        crate::throttle::throttled!(
            warn,
            node = %store.node(),
            "a word about a lock was not believed: another secret, or forged"
        );
    }
    found.retain(|held| held.is_in_store(store) != Some(false));
    found
}

fn verify_signature<'a>(field: &'a str, secrets: &[SharedSecret]) -> Option<&'a str> {
    let (text, mac) = field.rsplit_once(';')?;
    let mac = unhex(mac)?;
    // In constant time, each.
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
