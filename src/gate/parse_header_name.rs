//! Parsing of header names from the application's settings.

use http::HeaderName;

use crate::error::Error;

/// Returns the header name in lower case, as gates look it up. `setting` is the setting that has
/// it.
///
/// # Errors
///
/// If the name is not a valid header name: no message has such a header, so a key would never be
/// found, and nothing would be kept.
pub(crate) fn try_parse_header_name(setting: &str, name: &str) -> Result<String, Error> {
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(Error::setting(format!("{setting}: {name:?} is not a header name")));
    }
    Ok(name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::gate::KeySource;

    #[test]
    fn invalid_header_name_is_refused_at_startup() {
        assert_eq!(try_parse_header_name("x", "X-Account").expect("valid"), "x-account");
        for invalid in ["", "x account", "x-account:", "kontö"] {
            let key = catch_unwind(|| drop(KeySource::<()>::header(invalid)));
            let panic = key.expect_err("no request has it").downcast::<String>();
            assert!(panic.expect("a text").starts_with("by_header: "), "{invalid:?}");
            let error = KeySource::<()>::try_header(invalid).expect_err("no request has it");
            assert!(error.to_string().starts_with("by_header: "), "{invalid:?}");
        }
    }
}
