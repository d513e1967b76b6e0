//! One address, as proxies write it.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::key::canonical_ip;

/// Longest text that can be an address: 45 characters, brackets, a port, and a zone of some length.
const MAX_LEN: usize = 100;

/// An element of `X-Forwarded-For` and fields like it. With or without port, brackets and zone; an IPv4
/// address that is written as IPv6 is the IPv4 address.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if text.len() > MAX_LEN {
        return None;
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        let has_port = port.strip_prefix(':').is_some_and(is_port);
        return (port.is_empty() || has_port).then(|| parse_ipv6(inside)).flatten();
    }
    if let Ok(v4) = text.parse::<Ipv4Addr>() {
        return Some(v4.into());
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => {
            is_port(port).then(|| host.parse::<Ipv4Addr>().ok().map(IpAddr::from)).flatten()
        }
        // More than one colon: a port after an IPv6 address without brackets can't be told from it.
        _ => parse_ipv6(text),
    }
}

/// The address of the element's `for` in `Forwarded` (RFC 7239 section 4). `unknown`, identifiers such as
/// `_proxy` and an element that says nothing or is none are no address.
pub(super) fn parse_forwarded_for(element: &str) -> Option<IpAddr> {
    let mut node = None;
    let mut rest = element.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = parse_value(after)?;
        let name = name.trim();
        if name.is_empty() || name.contains(['"', ' ', ';']) {
            return None;
        }
        // Twice: which of the two was meant can't be known.
        if name.eq_ignore_ascii_case("for") && node.replace(value).is_some() {
            return None;
        }
        let after = after.trim_start();
        rest = match after.strip_prefix(';') {
            Some(more) => more.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    parse_address(&node?)
}

/// A parameter's value, a token or a quoted string, and what comes after it.
fn parse_value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_at(text.find(';').unwrap_or(text.len()));
        return (!value.contains('"')).then(|| (value.trim_end().into(), rest));
    };
    let mut escaped = false;
    let end = quoted.find(|c| match c {
        '"' if !escaped => true,
        _ => {
            escaped = c == '\\' && !escaped;
            false
        }
    })?;
    // No address has anything to escape: one that does is none, and stays unread.
    let (value, rest) = quoted.split_at(end);
    Some((value.into(), rest.strip_prefix('"')?))
}

fn parse_ipv6(text: &str) -> Option<IpAddr> {
    let bare = text.split_once('%').map_or(text, |(bare, _)| bare);
    bare.parse::<Ipv6Addr>().ok().map(|v6| canonical_ip(v6.into()))
}

/// A number, or what RFC 7239 section 6.3 has in its place.
fn is_port(text: &str) -> bool {
    let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let hidden =
        |rest: &str| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    is_number || text.strip_prefix('_').is_some_and(hidden)
}
