//! Signatures of Standard Webhooks.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Returns `v1,<base64>`, the signature over `<id>.<timestamp>.<body>`.
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub(super) fn sign_webhook(secret: &[u8], id: &str, timestamp: u64, body: &[u8]) -> String {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", encode_base64(&mac.finalize().into_bytes()))
}

#[expect(clippy::indexing_slicing, reason = "six bits are below 64")]
fn encode_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn signature_matches_the_documentation() {
        let secret = b"0123456789abcdef0123456789abcdef";
        let made = sign_webhook(secret, "msg_1", 1_700_000_000, b"{\"id\":\"x\"}");
        assert_eq!(made, "v1,Fxnqsz7pYJzHwtKkOFBoq5YiM+xF+DBoJ8/RmoIqtNI=");
    }
}
