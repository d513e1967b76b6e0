//! Idempotency keys: the parser of the header `Idempotency-Key`, and the key that a job's runs get
//! if their request has none.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{key::hex, store::JobId};

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
        Some(unquoted) => {
            let (key, parameters) = parse_quoted_string(unquoted).ok_or(())?;
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

/// Parses a structured string after its opening quote. Returns its text and the remaining text
/// after its closing quote.
fn parse_quoted_string(text: &str) -> Option<(String, &str)> {
    let mut parsed = String::new();
    let mut chars = text.chars();
    loop {
        parsed.push(match chars.next()? {
            '"' => return Some((parsed, chars.as_str())),
            '\\' => chars.next().filter(|escaped| matches!(escaped, '"' | '\\'))?,
            plain => Some(plain).filter(|plain| matches!(plain, ' '..='~'))?,
        });
    }
}

/// Returns true for a possibly empty list of parameters of a structured item (RFC 8941 section
/// 3.1.2). Only the characters of bare values are checked, since they are not used.
fn is_parameter_list(text: &str) -> bool {
    let mut remaining = text;
    while let Some(parameter) = remaining.strip_prefix(';') {
        let parameter = parameter.trim_start_matches(' ');
        let starts_name = |c: char| c.is_ascii_lowercase() || c == '*';
        let continues_name =
            |c: char| starts_name(c) || c.is_ascii_digit() || matches!(c, '_' | '-' | '.');
        if !parameter.starts_with(starts_name) {
            return false;
        }
        let after_name = parameter.trim_start_matches(continues_name);
        let Some(value) = after_name.strip_prefix('=') else {
            remaining = after_name;
            continue;
        };
        remaining = match value.strip_prefix('"').map(parse_quoted_string) {
            Some(Some((_, after_value))) => after_value,
            Some(None) => return false,
            None => {
                let ends_value =
                    |c: char| c == ';' || !c.is_ascii_graphic() || c == '"' || c == '\\';
                let after_value = value.trim_start_matches(|c| !ends_value(c));
                if after_value.len() == value.len() {
                    return false;
                }
                after_value
            }
        };
    }
    remaining.is_empty()
}

#[cfg(test)]
mod tests;
