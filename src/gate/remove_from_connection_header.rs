//! Removal of a header name from the `Connection` header.

use super::gate_request::GateRequest;

/// Removes this name from the `Connection` header. A proxy drops the headers named there (RFC 9110
/// section 7.6.1), and this header is the server's own, not the client's.
pub(crate) fn remove_from_connection<V: GateRequest>(view: &mut V, name: &str) {
    let is_name = |token: &&[u8]| token.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
    let lines = view.header_values("connection");
    let tokens = || lines.iter().flat_map(|line| line.split(|byte| *byte == b','));
    if !tokens().any(|token| is_name(&token)) {
        return;
    }
    let other_tokens: Vec<_> = tokens().filter(|token| !is_name(token)).collect();
    let value = String::from_utf8_lossy(&other_tokens.join(&b',')).into_owned();
    view.set_header("connection", Some(value.as_str()).filter(|value| !value.is_empty()));
}
