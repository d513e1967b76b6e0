//! Parser for one forwarded address, in the forms that proxies write.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::key::canonical_ip;

/// Longest text that can be an address: 45 characters, brackets, a port, and a zone.
const MAX_LEN: usize = 100;

/// Parses an element of `X-Forwarded-For` or a similar header, with or without port, brackets and
/// zone. An IPv4 address written as IPv6 becomes the IPv4 address.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if text.len() > MAX_LEN {
        return None;
    }
    if let Some(unparsed) = text.strip_prefix('[') {
        let (host, port) = unparsed.split_once(']')?;
        let has_port = port.strip_prefix(':').is_some_and(is_port);
        return (port.is_empty() || has_port).then(|| parse_ipv6(host)).flatten();
    }
    if let Ok(v4) = text.parse::<Ipv4Addr>() {
        return Some(v4.into());
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => {
            is_port(port).then(|| host.parse::<Ipv4Addr>().ok().map(IpAddr::from)).flatten()
        }
        // More than one colon: without brackets, a port can't be told from the IPv6 address.
        _ => parse_ipv6(text),
    }
}

/// Parses the `for` address of an element of `Forwarded` (RFC 7239 section 4). Returns `None` for
/// `unknown`, for identifiers such as `_proxy`, and for elements without `for` or with bad syntax.
pub(super) fn parse_forwarded_for(element: &str) -> Option<IpAddr> {
    let mut node = None;
    let mut unparsed = element.trim();
    while !unparsed.is_empty() {
        let (name, after_value) = unparsed.split_once('=')?;
        let (value, after_value) = parse_value(after_value)?;
        let name = name.trim();
        if name.is_empty() || name.contains(['"', ' ', ';']) {
            return None;
        }
        // A second `for` makes the element ambiguous.
        if name.eq_ignore_ascii_case("for") && node.replace(value).is_some() {
            return None;
        }
        let after_value = after_value.trim_start();
        unparsed = match after_value.strip_prefix(';') {
            Some(next_params) => next_params.trim_start(),
            None if after_value.is_empty() => after_value,
            None => return None,
        };
    }
    parse_address(&node?)
}

/// Splits off a parameter's value, a token or a quoted string, and returns it with the rest.
fn parse_value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, unparsed) = text.split_at(text.find(';').unwrap_or(text.len()));
        return (!value.contains('"')).then(|| (value.trim_end().into(), unparsed));
    };
    let mut escaped = false;
    let end = quoted.find(|c| match c {
        '"' if !escaped => true,
        _ => {
            escaped = c == '\\' && !escaped;
            false
        }
    })?;
    // An address needs no escapes, so they are left as they are and such a value does not parse.
    let (value, unparsed) = quoted.split_at(end);
    Some((value.into(), unparsed.strip_prefix('"')?))
}

fn parse_ipv6(text: &str) -> Option<IpAddr> {
    let without_zone = text.split_once('%').map_or(text, |(without_zone, _)| without_zone);
    without_zone.parse::<Ipv6Addr>().ok().map(|v6| canonical_ip(v6.into()))
}

/// Returns true for a number, and for an obfuscated port (RFC 7239 section 6.3).
fn is_port(text: &str) -> bool {
    let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let is_obfuscated_port =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    is_number || text.strip_prefix('_').is_some_and(is_obfuscated_port)
}
