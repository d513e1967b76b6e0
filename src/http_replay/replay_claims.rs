//! `ReplayClaims`: the claims of a replay header, signed and verified.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

pub(super) use crate::gate::REPLAY_HEADER;
use crate::{key::hex, lock::SharedSecret};

/// Claims of a replay header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplayClaims {
    /// Identity of the store that has the job.
    pub(super) store_identity: String,
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) fence: u64,
    pub(super) first_seen_ms: u64,
    pub(super) end_ms: u64,
}

/// Request that the signature covers.
#[derive(Clone, Copy)]
pub(super) struct SignatureInput<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    pub(super) body: &'a [u8],
}

impl ReplayClaims {
    fn to_text(&self) -> String {
        let Self { store_identity, id, attempt, fence, first_seen_ms, end_ms } = self;
        format!("2;{store_identity};{id};{attempt};{fence};{first_seen_ms};{end_ms}")
    }

    pub(super) fn sign(&self, secret: &SharedSecret, request: SignatureInput<'_>) -> String {
        let text = self.to_text();
        let mac = request_mac(secret, &text, request).finalize().into_bytes();
        format!("{text};{}", hex(&mac))
    }

    /// Verifies a header and parses it. `None` if it is not signed with one of these secrets, or
    /// malformed.
    pub(super) fn verify(
        header: &str,
        secrets: &[SharedSecret],
        request: SignatureInput<'_>,
    ) -> Option<Self> {
        let (text, mac) = header.rsplit_once(';')?;
        let mac = unhex(mac)?;
        // Each comparison takes constant time.
        let holds = |secret| request_mac(secret, text, request).verify_slice(&mac).is_ok();
        if !secrets.iter().any(holds) {
            return None;
        }
        let mut parts = text.split(';');
        let mut part = || parts.next();
        let ("2", store_identity, id) = (part()?, part()?, part()?) else { return None };
        let mut number = || part()?.parse::<u64>().ok();
        let (attempt, fence, first_seen_ms, end_ms) = (number()?, number()?, number()?, number()?);
        let attempt = attempt.try_into().ok()?;
        let (store_identity, id) = (store_identity.to_owned(), id.to_owned());
        Some(Self { store_identity, id, attempt, fence, first_seen_ms, end_ms })
    }
}

/// Returns the MAC of the claims and the request. The parts contain no line feed, so the joined
/// text is unambiguous.
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
fn request_mac(secret: &SharedSecret, text: &str, request: SignatureInput<'_>) -> Hmac<Sha256> {
    let SignatureInput { method, target, body } = request;
    let body_hash = hex(&Sha256::digest(body));
    let signed = [REPLAY_HEADER, text, method, target, &body_hash].join("\n");
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(signed.as_bytes());
    mac
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if text.len() != 64 || !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    text.chunks_exact(2).map(pair).collect()
}
