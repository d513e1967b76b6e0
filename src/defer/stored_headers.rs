//! Which header fields are stored, of requests and of responses.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{
    key::{hex, matching_credential},
    store::JobId,
};

/// Fields that belong to one connection, not to the request (RFC 9110 section 7.6.1), and those that
/// are about this exchange alone: its length, `Expect` (10.1.1), `Prefer` (RFC 7240), and `Accept-Encoding`: whoever reads
/// the response later says which codings he knows then. Conditions
/// (`If-Match`) stay, since they are about the resource, and hold or fail when the request runs; so does
/// `Range`, which means nothing in the methods that are deferred (RFC 9110 section 14.2).
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

/// Fields of ours begin like this: words between services about locks and runs, good for one call and for a
/// moment.
const INTERNAL_HEADER_PREFIX: &str = "lockgate-";

/// Fields that are stored or not, by their lower-case names.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredHeaderFilter {
    /// Stored though they carry a credential or belong to one connection.
    pub(super) keep_headers: Vec<String>,
    /// Credentials of the application, besides those that `key::credential` knows.
    pub(super) credential_headers: Vec<String>,
}

impl StoredHeaderFilter {
    fn is_exempt(&self, name: &str) -> bool {
        self.keep_headers.iter().any(|keep| keep == name)
    }

    /// Returns the entry of the list of credentials that covers this name, whether it is kept or not.
    fn matching_credential(&self, name: &str) -> Option<&str> {
        let own = || self.credential_headers.iter().find(|own| *own == name).map(String::as_str);
        matching_credential(name).or_else(own)
    }

    /// Returns true if a field of this name carries a credential, whether it is kept or not: the request is some user's.
    pub(super) fn is_credential(&self, name: &str) -> bool {
        self.matching_credential(name).is_some()
    }

    /// Returns the entry of the list of credentials that covers this name, if it is not kept.
    pub(super) fn withheld_credential(&self, name: &str) -> Option<&str> {
        self.matching_credential(name).filter(|_| !self.is_exempt(name))
    }

    /// Returns true if a field of this name is stored. Nothing else of the request counts: a client
    /// could otherwise remove fields that a layer further out has set. An origin that stores for itself
    /// is not a proxy hop, so names in `RedisConnection` mean nothing here (RFC 9110 section 7.6.1).
    pub(super) fn allows(&self, name: &str) -> bool {
        let goes = UNSTORED_HEADERS.contains(&name) && !self.is_exempt(name);
        !name.starts_with(INTERNAL_HEADER_PREFIX)
            && !goes
            && self.withheld_credential(name).is_none()
    }
}

/// Response fields that are kept: what the content is, and what a browser may do with it. `Set-Cookie` is not among
/// them: whoever reads the status resource is not necessarily whom the cookie is for.
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

/// Header fields in order, repeats kept.
pub(super) type HeaderList = Vec<(String, Vec<u8>)>;

/// What is stored of a request.
pub(super) fn stored_request_headers(
    headers: &HeaderList,
    fields: &StoredHeaderFilter,
) -> HeaderList {
    headers.iter().filter(|(name, _)| fields.allows(name)).cloned().collect()
}

/// Bytes that the stored head of a request takes: names, values, path and query.
pub(super) fn stored_head_len(
    target: &str,
    headers: &HeaderList,
    fields: &StoredHeaderFilter,
) -> usize {
    let stored = headers.iter().filter(|(name, _)| fields.allows(name));
    target.len() + stored.map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// What is stored of a response, with these fields besides.
pub(super) fn stored_response_headers(headers: HeaderList, more: &[String]) -> HeaderList {
    let kept =
        |name: &String| STORED_RESPONSE_HEADERS.contains(&name.as_str()) || more.contains(name);
    headers.into_iter().filter(|(name, _)| kept(name)).collect()
}

/// The field that tells a handler which requests are the same one.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// For a request whose client has sent none: the same in every run of a job, and of no use to find the
/// job by, which whoever logs such keys could otherwise do.
#[expect(clippy::indexing_slicing, reason = "it has 32 bytes")]
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub(super) fn derive_idempotency_key(id: &JobId) -> String {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(b"lockgate idempotency key 1").expect("a key of any length");
    mac.update(id.as_str().as_bytes());
    format!("\"{}\"", hex(&mac.finalize().into_bytes()[..16]))
}

/// Offers to go on by another version of HTTP, or by TLS, which clients make with each request of a kind, and servers
/// may ignore (RFC 9110 section 7.8).
const OPTIONAL_UPGRADES: [&str; 3] = ["h2c", "http", "tls"];

/// True if the request asks for another protocol: there is nothing to send back to it later.
pub(super) fn requires_upgrade(method: &str, upgrade: &[&[u8]]) -> bool {
    let asks = |protocol: &[u8]| {
        let name = protocol.split(|&b| b == b'/').next().unwrap_or_default().trim_ascii();
        !name.is_empty()
            && !OPTIONAL_UPGRADES.iter().any(|offer| name.eq_ignore_ascii_case(offer.as_bytes()))
    };
    method == "CONNECT" || upgrade.iter().flat_map(|value| value.split(|&b| b == b',')).any(asks)
}

/// Reads an `Idempotency-Key`: a structured string, with escapes and parameters (RFC 8941 section
/// 3.3.3, draft-ietf-httpapi-idempotency-key-header), or a bare word, as many clients send it. The
/// parameters are checked and not used. `Err` if it is neither, empty, or longer than `MAX_IDEMPOTENCY_KEY_LEN`.
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

/// Longest idempotency key, in bytes: a UUID, or several, with room for a name.
const MAX_IDEMPOTENCY_KEY_LEN: usize = 255;

fn is_bare_key_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'
}

/// Reads a structured string behind its first quote: its text, and the rest behind its last one.
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

/// Returns true for the parameters of a structured item, or none (RFC 8941 section 3.1.2). Of a value
/// that is no string only the characters are checked: it is not used.
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
