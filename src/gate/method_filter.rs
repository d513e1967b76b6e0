//! `MethodFilter`: the methods that a layer applies to.

use super::gate_request::is_safe_method;
use crate::error::Error;

/// Methods that a layer applies to.
#[derive(Debug, Clone)]
pub(crate) enum MethodFilter {
    /// Methods that may change something.
    Unsafe,
    /// All methods but OPTIONS and TRACE, which do not act on the resource: a preflight that a busy
    /// lock refuses would fail the request after it.
    ReadOrWrite,
    All,
    Listed(Vec<String>),
}

impl MethodFilter {
    /// Includes exactly these names, which are case-sensitive; `GET` includes HEAD.
    ///
    /// # Errors
    ///
    /// If there are no names, or if one of them could match nothing: requests would bypass the
    /// layer.
    pub(crate) fn try_listed<M: AsRef<str>>(
        layer: &str,
        methods: impl IntoIterator<Item = M>,
    ) -> Result<Self, Error> {
        let names: Vec<_> = methods.into_iter().map(|name| name.as_ref().to_owned()).collect();
        if names.is_empty() {
            let sentence = format!("{layer}::methods: the list is empty; name at least one method");
            return Err(Error::setting(sentence));
        }
        names.iter().try_for_each(|name| check_method_name(layer, name))?;
        Ok(Self::Listed(names))
    }

    /// Like `try_listed`, for methods of a test.
    #[cfg(test)]
    pub(crate) fn listed<M: AsRef<str>>(layer: &str, methods: impl IntoIterator<Item = M>) -> Self {
        crate::error::expect_setting(Self::try_listed(layer, methods))
    }

    #[inline]
    pub(crate) fn matches(&self, method: &str) -> bool {
        match self {
            Self::Unsafe => !is_safe_method(method),
            Self::ReadOrWrite => !matches!(method, "OPTIONS" | "TRACE"),
            Self::All => true,
            Self::Listed(names) => {
                // HEAD is GET without the content (RFC 9110 section 9.3.2), and routers run the
                // same handler for it.
                let is_listed =
                    |name: &String| name == method || (name == "GET" && method == "HEAD");
                names.iter().any(is_listed)
            }
        }
    }
}

fn check_method_name(layer: &str, name: &str) -> Result<(), Error> {
    const REGISTERED: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    // A token by RFC 9110 section 5.6.2.
    let is_token_byte = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(Error::setting(format!("{layer}::methods: {name:?} is not a method name")));
    }
    let same_letters = REGISTERED.iter().find(|method| method.eq_ignore_ascii_case(name));
    if same_letters.is_some_and(|method| *method != name) {
        return Err(Error::setting(format!(
            "{layer}::methods: method names are case-sensitive; write {name:?} in upper case"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_matches_exactly_the_listed_methods() {
        let some = MethodFilter::listed("LockLayer", ["POST", "GET", "PROPPATCH"]);
        assert!(some.matches("POST") && some.matches("GET") && some.matches("PROPPATCH"));
        assert!(!some.matches("PUT") && !some.matches("post"));
        assert!(
            some.matches("HEAD") && !MethodFilter::listed("LockLayer", ["HEAD"]).matches("GET")
        );
        assert!(MethodFilter::Unsafe.matches("PROPPATCH") && !MethodFilter::Unsafe.matches("GET"));
        assert!(MethodFilter::All.matches("OPTIONS"));
        assert!(
            MethodFilter::ReadOrWrite.matches("GET")
                && !MethodFilter::ReadOrWrite.matches("OPTIONS")
        );
    }

    /// The panic message names the layer that has the setting.
    #[test]
    fn unmatchable_method_names_are_refused() {
        for layer in ["LockLayer", "DeferLayer"] {
            for names in
                [&[][..], &[""], &["post"], &["POST", "Get"], &["PO ST"], &["POST,PUT"], &["é"]]
            {
                let built = std::panic::catch_unwind(|| MethodFilter::listed(layer, names));
                let message = built.expect_err("it matches nothing");
                let message = message.downcast_ref::<String>().cloned().unwrap_or_else(|| {
                    message.downcast_ref::<&str>().map(ToString::to_string).unwrap_or_default()
                });
                assert!(message.starts_with(&format!("{layer}::methods: ")), "{message}");
            }
        }
    }
}
