//! Delegation header: signs a held lock for a called service, and verifies the locks that a caller
//! delegates.
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

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::Mac as _;
use tokio::time::Instant;

use super::{
    held_lock_view::{DelegationClaims, HeldLock},
    shared_secret::SharedSecret,
    stripped_headers::StrippedHeaders,
};
use crate::{
    gate::GateRequest,
    key::{Key, hex},
    store::{LockMode, Store},
};

/// Header with the value `2;<store>;<mode>;<fence>;<end>;<key>;<mac>`.
///
/// - `store`: identity of the store
/// - `mode`: `x`, `s`, or `p` with the number of permits
/// - `end`: Unix milliseconds
/// - `mac`: HMAC-SHA256 in hex
pub(super) const DELEGATION_HEADER: &str = "lockgate-held";

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
        let remaining = Some(self.remaining()).filter(|remaining| !remaining.is_zero())?;
        let (fence, mode) =
            (self.fence()?, self.mode().filter(|_| self.is_in_store(store) == Some(true))?);
        let end = now.checked_add(remaining)?.duration_since(UNIX_EPOCH).ok()?.as_millis();
        let (store_identity, mode) = (store.backend().identities().pop()?, encode_mode(mode));
        let claims = format!("2;{store_identity};{mode};{fence};{end};{}", self.key());
        let signature = secret.mac(&claims).finalize().into_bytes();
        Some((DELEGATION_HEADER, format!("{claims};{}", hex(&signature))))
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
    let Some(stripped) = view.extension::<StrippedHeaders>() else { return Vec::new() };
    let (mut delegated, mut is_forged) = (Vec::new(), false);
    for value in stripped.delegations.iter() {
        match verify_signature(value, secrets) {
            Some(claims) => delegated.extend(parse_claims(claims, now)),
            None => is_forged = true,
        }
    }
    // One log record, for any number of headers.
    if is_forged {
        crate::throttle::throttled!(
            warn,
            node = %store.node(),
            "delegation header rejected: unknown secret or forged"
        );
    }
    delegated.retain(|held| held.is_in_store(store) != Some(false));
    delegated
}

fn verify_signature<'a>(value: &'a str, secrets: &[SharedSecret]) -> Option<&'a str> {
    let (claims, signature) = value.rsplit_once(';')?;
    let signature = unhex(signature)?;
    // Each comparison takes constant time.
    secrets
        .iter()
        .any(|secret| secret.mac(claims).verify_slice(&signature).is_ok())
        .then_some(claims)
}

fn parse_claims(claims: &str, now: SystemTime) -> Option<HeldLock> {
    let mut parts = claims.splitn(6, ';');
    let mut part = || parts.next();
    let ("2", store_identity, mode, fence, end, key) =
        (part()?, part()?, part()?, part()?, part()?, part()?)
    else {
        return None;
    };
    let mode = parse_mode(mode)?;
    let end = UNIX_EPOCH.checked_add(Duration::from_millis(end.parse().ok()?))?;
    let expires_at = Instant::now().checked_add(end.duration_since(now).ok()?)?;
    let fence = fence.parse().ok()?;
    let lock = DelegationClaims { store_identity: store_identity.into(), fence, mode, expires_at };
    Some(HeldLock::delegated(Key::from_store(key), lock))
}

fn encode_mode(mode: LockMode) -> String {
    match mode {
        LockMode::Exclusive | LockMode::Shared => mode.wire_letter().to_owned(),
        LockMode::Permits(max_holders) => format!("{}{max_holders}", mode.wire_letter()),
    }
}

fn parse_mode(text: &str) -> Option<LockMode> {
    match text {
        "x" => Some(LockMode::Exclusive),
        "s" => Some(LockMode::Shared),
        _ => {
            let max_holders = text.strip_prefix('p')?.parse().ok()?;
            (max_holders > 0).then_some(LockMode::Permits(max_holders))
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
