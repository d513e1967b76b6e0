//! Filters for the headers of requests and responses that are stored, and the `Idempotency-Key`
//! parser.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{
    key::{hex, matching_credential},
    store::JobId,
};

/// Headers that are not stored:
///
/// - headers of a connection (RFC 9110 section 7.6.1),
/// - headers of this exchange alone: its length, `Expect` (10.1.1) and `Prefer` (RFC 7240),
/// - `Accept-Encoding`: a later reader of the response names its own codings.
///
/// Conditions (`If-Match`) are stored, since they are about the resource, and are evaluated when
/// the request runs. `Range` is stored too; it has no meaning in the methods that are deferred (RFC
/// 9110 section 14.2).
const UNSTORED_HEADERS: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    "prefer",
    "accept-encoding",
];

/// Prefix of lockgate's own headers. They carry information about locks and runs that is valid for
/// one call and for a moment.
const INTERNAL_HEADER_PREFIX: &str = "lockgate-";

/// Headers to store, by their lower-case names.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredHeaderFilter {
    /// Stored although they carry a credential or belong to a connection.
    pub(super) keep_headers: Vec<String>,
    /// Credential headers of the application, besides those of `key::credential_headers`.
    pub(super) credential_headers: Vec<String>,
}

impl StoredHeaderFilter {
    fn is_exempt(&self, name: &str) -> bool {
        self.keep_headers.iter().any(|keep| keep == name)
    }

    /// Returns the entry of the credential list that covers this name, whether it is kept or not.
    fn matching_credential(&self, name: &str) -> Option<&str> {
        let own = || self.credential_headers.iter().find(|own| *own == name).map(String::as_str);
        matching_credential(name).or_else(own)
    }

    /// Returns true if a header of this name carries a credential, whether it is kept or not: the
    /// request belongs to a user.
    pub(super) fn is_credential(&self, name: &str) -> bool {
        self.matching_credential(name).is_some()
    }

    /// Returns the entry of the credential list that covers this name, unless the header is kept.
    pub(super) fn withheld_credential(&self, name: &str) -> Option<&str> {
        self.matching_credential(name).filter(|_| !self.is_exempt(name))
    }

    /// Returns true if a header of this name is stored.
    ///
    /// Only the name counts: otherwise a client could remove headers that an outer layer has set.
    /// An origin that stores a request for itself is not a proxy hop, so names listed in
    /// `Connection` have no effect (RFC 9110 section 7.6.1).
    pub(super) fn allows(&self, name: &str) -> bool {
        let goes = UNSTORED_HEADERS.contains(&name) && !self.is_exempt(name);
        !name.starts_with(INTERNAL_HEADER_PREFIX)
            && !goes
            && self.withheld_credential(name).is_none()
    }
}

/// Response headers that are stored: those that describe the content or tell a browser how to treat
/// it.
///
/// `Set-Cookie` is missing, because the reader of the status resource is not necessarily the client
/// that the cookie is for.
const STORED_RESPONSE_HEADERS: &[&str] = &[
    "allow",
    "content-type",
    "content-language",
    "content-encoding",
    "content-disposition",
    "content-location",
    "content-security-policy",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "etag",
    "last-modified",
    "link",
    "location",
    "permissions-policy",
    "referrer-policy",
    "warning",
    "x-content-type-options",
    "x-frame-options",
];

/// Headers in order, repeats kept.
pub(super) type HeaderPairs = Vec<(String, Vec<u8>)>;

/// Returns the headers of a request that are stored.
pub(super) fn stored_request_headers(
    headers: &HeaderPairs,
    fields: &StoredHeaderFilter,
) -> HeaderPairs {
    headers.iter().filter(|(name, _)| fields.allows(name)).cloned().collect()
}

/// Returns the size of a request's stored head in bytes: names, values, path and query.
pub(super) fn stored_head_len(
    target: &str,
    headers: &HeaderPairs,
    fields: &StoredHeaderFilter,
) -> usize {
    let stored = headers.iter().filter(|(name, _)| fields.allows(name));
    target.len() + stored.map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// Returns the headers of a response that are stored: the default ones and those in `more`.
pub(super) fn stored_response_headers(headers: HeaderPairs, more: &[String]) -> HeaderPairs {
    let kept =
        |name: &String| STORED_RESPONSE_HEADERS.contains(&name.as_str()) || more.contains(name);
    headers.into_iter().filter(|(name, _)| kept(name)).collect()
}

/// Header by which a handler recognizes repeated requests.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Derives the key of a request without an `Idempotency-Key`.
///
/// It is the same in every run of a job. The job can't be found by it, in contrast to the id, so a
/// handler may log it.
#[expect(clippy::indexing_slicing, reason = "a SHA-256 HMAC has 32 bytes")]
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub(super) fn derive_idempotency_key(id: &JobId) -> String {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(b"lockgate idempotency key 1").expect("HMAC takes keys of any length");
    mac.update(id.as_str().as_bytes());
    format!("\"{}\"", hex(&mac.finalize().into_bytes()[..16]))
}

/// Upgrade offers to another version of HTTP or to TLS. Clients send them with ordinary requests,
/// and servers may ignore them (RFC 9110 section 7.8).
const OPTIONAL_UPGRADES: [&str; 3] = ["h2c", "http", "tls"];

/// Returns true if the request asks for another protocol: such a request has no response to store.
pub(super) fn requires_upgrade(method: &str, upgrade: &[&[u8]]) -> bool {
    let asks = |protocol: &[u8]| {
        let name = protocol.split(|&b| b == b'/').next().unwrap_or_default().trim_ascii();
        !name.is_empty()
            && !OPTIONAL_UPGRADES.iter().any(|offer| name.eq_ignore_ascii_case(offer.as_bytes()))
    };
    method == "CONNECT" || upgrade.iter().flat_map(|value| value.split(|&b| b == b',')).any(asks)
}

/// Parses an `Idempotency-Key`: a structured string with escapes and parameters (RFC 8941 section
/// 3.3.3, draft-ietf-httpapi-idempotency-key-header), or a bare token, which many clients send.
///
/// Parameters are checked and ignored. `Err` if the value is neither, is empty, is repeated, or is
/// longer than `MAX_IDEMPOTENCY_KEY_LEN`.
pub(super) fn parse_idempotency_key(values: &[&[u8]]) -> Result<Option<String>, ()> {
    let [value] = values else {
        return if values.is_empty() { Ok(None) } else { Err(()) };
    };
    let text = std::str::from_utf8(value).map_err(drop)?.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(rest) => {
            let (key, parameters) = parse_quoted_string(rest).ok_or(())?;
            if !is_parameter_list(parameters) {
                return Err(());
            }
            key
        }
        None => Some(text).filter(|text| text.bytes().all(is_bare_key_byte)).ok_or(())?.to_owned(),
    };
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_LEN { Err(()) } else { Ok(Some(key)) }
}

/// Longest idempotency key, in bytes: enough for several UUIDs, or for a UUID and a name.
const MAX_IDEMPOTENCY_KEY_LEN: usize = 255;

fn is_bare_key_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'
}

/// Parses a structured string after its opening quote. Returns its text and the rest after its
/// closing quote.
fn parse_quoted_string(text: &str) -> Option<(String, &str)> {
    let mut read = String::new();
    let mut chars = text.chars();
    loop {
        read.push(match chars.next()? {
            '"' => return Some((read, chars.as_str())),
            '\\' => chars.next().filter(|escaped| matches!(escaped, '"' | '\\'))?,
            plain => Some(plain).filter(|plain| matches!(plain, ' '..='~'))?,
        });
    }
}

/// Returns true for a possibly empty list of parameters of a structured item (RFC 8941 section
/// 3.1.2). Only the characters of bare values are checked, since they are not used.
fn is_parameter_list(text: &str) -> bool {
    let mut text = text;
    while let Some(rest) = text.strip_prefix(';') {
        let rest = rest.trim_start_matches(' ');
        let is_first = |c: char| c.is_ascii_lowercase() || c == '*';
        let is_more = |c: char| is_first(c) || c.is_ascii_digit() || matches!(c, '_' | '-' | '.');
        if !rest.starts_with(is_first) {
            return false;
        }
        let value = rest.trim_start_matches(is_more);
        let Some(value) = value.strip_prefix('=') else {
            text = value;
            continue;
        };
        text = match value.strip_prefix('"').map(parse_quoted_string) {
            Some(Some((_, rest))) => rest,
            Some(None) => return false,
            None => {
                let ends = |c: char| c == ';' || !c.is_ascii_graphic() || c == '"' || c == '\\';
                let rest = value.trim_start_matches(|c| !ends(c));
                if rest.len() == value.len() {
                    return false;
                }
                rest
            }
        };
    }
    text.is_empty()
}

#[cfg(test)]
mod tests;
