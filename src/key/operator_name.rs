//! Names of keys for operators: the plain text of a key of the application or of an IPv4 address,
//! and the stored form of all others.

use std::{borrow::Cow, net::IpAddr};

use percent_encoding::percent_decode_str;

use super::{Key, encoding::is_unescaped};

impl Key {
    /// Returns the name of the key for operators: the text given to [`Key::custom`], the IPv4
    /// address of [`Key::ip`], or the stored form, such as `p:id:orders:7` for a path parameter.
    ///
    /// ```
    /// use lockgate::Key;
    ///
    /// assert_eq!(Key::custom("order:7").operator_name(), "order:7");
    /// assert_eq!(Key::path_param("id", "7").operator_name(), "p:id::7");
    /// assert_eq!(Key::ip([192, 0, 2, 7].into()).operator_name(), "192.0.2.7");
    /// ```
    #[must_use]
    pub fn operator_name(&self) -> Cow<'_, str> {
        let address = self.0.strip_prefix("a:::").filter(|text| parse_address(text).is_some());
        if let Some(address) = address {
            return Cow::Borrowed(address);
        }
        let plain = self.0.strip_prefix("c:::").filter(|value| !value.starts_with('~'));
        let decoded = plain.and_then(|value| percent_decode_str(value).decode_utf8().ok());
        match decoded {
            Some(text) if is_plain_name(&text) => text,
            _ => Cow::Borrowed(self.as_str()),
        }
    }

    /// Returns the key of a name that an operator has typed or copied: the inverse of
    /// [`operator_name`](Self::operator_name). An address is the key of [`Key::ip`].
    ///
    /// ```
    /// use lockgate::Key;
    ///
    /// assert_eq!(Key::from_operator_name("order:7"), Key::custom("order:7"));
    /// assert_eq!(Key::from_operator_name("p:id::7"), Key::path_param("id", "7"));
    /// ```
    #[must_use]
    pub fn from_operator_name(name: &str) -> Self {
        if let Some(address) = parse_address(name) {
            return Self::ip(address);
        }
        if is_stored_form(name) { Self::from_store(name) } else { Self::custom(name) }
    }
}

/// Parses an address. The stored form of an IPv6 network has dashes and is none; other stored
/// forms, such as `e:add::1`, look like addresses of `::/8`, which no client has.
fn parse_address(text: &str) -> Option<IpAddr> {
    let is_stored_form = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.segments()[0] < 0x100 && is_stored_form(text),
    };
    text.parse().ok().filter(|address| !is_stored_form(address))
}

fn is_plain_name(text: &str) -> bool {
    !text.is_empty()
        && !text.contains(char::is_control)
        && !is_stored_form(text)
        && parse_address(text).is_none()
}

/// Returns true for `<kind>:<name>:<scope>:<value>` with escaped parts.
fn is_stored_form(text: &str) -> bool {
    let mut parts = text.split(':');
    let has_kind = parts.next().is_some_and(|kind| {
        (1..=5).contains(&kind.len()) && kind.bytes().all(|byte| byte.is_ascii_lowercase())
    });
    let is_escaped = |byte| is_unescaped(byte) || matches!(byte, b'%' | b'~' | b'+' | b':');
    has_kind && parts.count() == 3 && text.bytes().all(is_escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_name_leads_back_to_the_key() {
        let custom = [
            "order:7",
            "a:b:c:d",
            "c:::x",
            "Käse 7",
            "a\u{1b}[2J",
            "",
            "p:id::7",
            "192.0.2.7",
            "::1",
        ];
        let long = "x".repeat(200);
        let keys = custom.into_iter().chain([long.as_str()]).map(Key::custom);
        let others = [
            Key::path_param("id", "7").scope("orders"),
            Key::path_param("id", "a b").stripe(16),
            Key::ip([192, 0, 2, 7].into()),
            Key::ip("2001:db8::7".parse().unwrap()),
            Key::unknown_address(),
            Key::from_store("e:add::1"),
            Key::route("/orders/{id}"),
            Key::custom("7").scope("a").scope("b"),
        ];
        for key in keys.chain(others) {
            let name = key.operator_name();
            assert_eq!(Key::from_operator_name(&name), key, "{name}");
            assert!(!name.contains(char::is_control), "{name:?}");
        }
        let network = Key::from_operator_name("2001:db8::7");
        assert_eq!(network, Key::ip("2001:db8::8".parse().unwrap()), "a host has a whole /64");
    }
}
