//! Which headers of a response are stored.

use super::envelope::HeaderPairs;

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

/// Returns the headers of a response that are stored: the default ones and those in
/// `keep_headers`.
pub(super) fn stored_response_headers(
    headers: HeaderPairs,
    keep_headers: &[String],
) -> HeaderPairs {
    let is_stored = |name: &String| {
        STORED_RESPONSE_HEADERS.contains(&name.as_str()) || keep_headers.contains(name)
    };
    headers.into_iter().filter(|(name, _)| is_stored(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderPairs {
        list.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
    }

    /// Otherwise the stored response would be an unrestricted page that other users can be sent to.
    #[test]
    fn stored_response_keeps_browser_restrictions() {
        let received = [
            ("content-security-policy", "sandbox"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("set-cookie", "a=b"),
            ("x-own", "1"),
        ];
        assert_eq!(stored_response_headers(headers(&received), &[]), headers(&received[..3]));
        assert_eq!(stored_response_headers(headers(&received), &["x-own".to_owned()]).len(), 4);
    }
}
