//! Names of header fields that an application has written down.

use http::HeaderName;

/// The name as messages have it: in lower case. `setting` is what it was given to.
///
/// # Panics
///
/// If it is none. No message has such a field, so that a key would never be found, and nothing ever kept.
pub(crate) fn field_name(setting: &str, name: &str) -> String {
    let known = HeaderName::from_bytes(name.as_bytes());
    assert!(known.is_ok(), "{setting}: {name:?} is not the name of a header field");
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::gate::KeySource;

    #[test]
    fn a_name_is_one_or_is_refused_at_the_start() {
        assert_eq!(field_name("x", "X-Account"), "x-account");
        for odd in ["", "x account", "x-account:", "kontö"] {
            let key = catch_unwind(|| drop(KeySource::<()>::header(odd)));
            let said = key.expect_err("no request has it").downcast::<String>();
            assert!(said.expect("a text").starts_with("by_header: "), "{odd:?}");
        }
    }
}
