//! Header names from the application's settings, and the `Connection` header.

use http::HeaderName;

use super::gate_request::GateRequest;

/// Returns the header name in lower case, as gates look it up. `setting` is the setting that has
/// it.
///
/// # Panics
///
/// If the name is not a valid header name: no message has such a header, so a key would never be
/// found, and nothing would be kept.
pub(crate) fn parse_header_name(setting: &str, name: &str) -> String {
    let known = HeaderName::from_bytes(name.as_bytes());
    assert!(known.is_ok(), "{setting}: {name:?} is not a header name");
    name.to_ascii_lowercase()
}

/// Removes this name from the `Connection` header. A proxy drops the headers named there (RFC 9110
/// section 7.6.1), and this header is the server's own, not the client's.
pub(crate) fn remove_from_connection<V: GateRequest>(view: &mut V, name: &str) {
    let is_it = |token: &&[u8]| token.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
    let lines = view.header_values("connection");
    let tokens = || lines.iter().flat_map(|line| line.split(|byte| *byte == b','));
    if !tokens().any(|token| is_it(&token)) {
        return;
    }
    let left: Vec<_> = tokens().filter(|token| !is_it(token)).collect();
    let left = String::from_utf8_lossy(&left.join(&b',')).into_owned();
    view.set_header("connection", Some(left.as_str()).filter(|left| !left.is_empty()));
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::gate::KeySource;

    #[test]
    fn invalid_header_name_is_refused_at_startup() {
        assert_eq!(parse_header_name("x", "X-Account"), "x-account");
        for odd in ["", "x account", "x-account:", "kontö"] {
            let key = catch_unwind(|| drop(KeySource::<()>::header(odd)));
            let said = key.expect_err("no request has it").downcast::<String>();
            assert!(said.expect("a text").starts_with("by_header: "), "{odd:?}");
        }
    }
}
