//! Text forms of bytes: escaped, hashed, hexadecimal.

use std::{borrow::Cow, fmt, fmt::Write as _};

use sha2::{Digest as _, Sha256};

use super::credential_headers::is_credential;

/// Maximum length of a readable value in a key, in bytes after escaping.
pub(super) const MAX_READABLE_LEN: usize = 80;

/// Hashed form of a name for logs. The hash is computed only if a subscriber formats the record.
pub(crate) struct LogHash<'a>(pub(crate) &'a str);

impl fmt::Display for LogHash<'_> {
    #[expect(clippy::indexing_slicing, reason = "a digest has 32 bytes")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = Sha256::digest(self.0.as_bytes());
        digest[..6].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Returns the bytes in lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// Returns the SHA-256 of several parts. Each part is preceded by its length, which keeps the
/// boundaries between parts unambiguous.
pub(crate) fn digest_parts(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

pub(super) fn is_unescaped(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Escapes all bytes but letters, digits and `-_.` as `%XX`. A longer result than
/// `MAX_READABLE_LEN` is replaced by a [truncated hash](truncated_hash), which starts with `~`.
/// Readable values never contain `~`, so the two forms can't collide.
#[expect(clippy::indexing_slicing, reason = "four bits are below 16")]
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().min(MAX_READABLE_LEN));
    for &byte in bytes.iter().take(MAX_READABLE_LEN + 1) {
        match byte {
            _ if is_unescaped(byte) => out.push(byte.into()),
            _ => {
                // Faster than `write!`; most bytes of a route pattern are escaped.
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                let [high, low] = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
                out.extend(['%', high.into(), low.into()]);
            }
        }
    }
    if out.len() > MAX_READABLE_LEN { truncated_hash(bytes) } else { out }
}

/// Returns `~` and the first half of the SHA-256, in hex.
#[expect(clippy::indexing_slicing, reason = "a digest has 32 bytes")]
pub(super) fn truncated_hash(bytes: &[u8]) -> String {
    format!("~{}", hex(&Sha256::digest(bytes)[..16]))
}

/// Returns the normalized value of a credential header, to be hashed, or `None` for other headers.
pub(crate) fn credential_value<'a>(name: &str, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    match name {
        "authorization" | "proxy-authorization" => Some(normalize_authorization(value)),
        name => is_credential(name).then(|| value.into()),
    }
}

/// Normalizes credentials: scheme in lower case, then one space (RFC 9110 section 11.4).
fn normalize_authorization(value: &[u8]) -> Cow<'_, [u8]> {
    let value = value.trim_ascii();
    let Some(scheme_end) = value.iter().position(|byte| *byte == b' ') else { return value.into() };
    let (scheme, credentials) = value.split_at(scheme_end);
    let mut out = scheme.to_ascii_lowercase();
    out.push(b' ');
    out.extend_from_slice(credentials.trim_ascii_start());
    out.into()
}
