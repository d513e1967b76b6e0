//! Named origins of keys: route parameters, as sent or in the canonical form of their type, and
//! headers.

use std::{fmt::Display, str::FromStr, sync::Arc};

use http::HeaderName;

use super::{
    gate_request::{GateRequest, PathParamError, RouteMatch},
    key_error::KeyError,
};
use crate::{error::Error, key::Key};

/// Converts a value to its canonical form; `None` if it does not parse.
///
/// A handler that parses its parameter as a number has order 7 for `7`, `07` and `+7`: three texts,
/// and one resource.
pub(super) type CanonicalizeFn = fn(&str) -> Option<String>;

/// Returns the `Display` form of a value of this type, which is the same for all its spellings.
pub(super) fn canonicalize<T: FromStr + Display>(text: &str) -> Option<String> {
    text.parse::<T>().ok().map(|value| value.to_string())
}

/// A parameter or header, with the data derived from its name once for all requests.
#[derive(Debug)]
pub(super) struct NamedSource {
    pub(super) name: String,
    /// `None` for a parameter.
    pub(super) header_name: Option<HeaderName>,
    /// Only for a parameter with a type.
    pub(super) canonicalize: Option<CanonicalizeFn>,
    pub(super) key_prefix: String,
}

impl NamedSource {
    pub(super) fn header(name: &str) -> Arc<Self> {
        let (name, key_prefix) = (name.to_owned(), Key::prefix("h", name));
        let header_name = HeaderName::from_bytes(name.as_bytes()).ok();
        Arc::new(Self { header_name, canonicalize: None, name, key_prefix })
    }

    pub(super) fn path_param(name: &str, canonicalize: Option<CanonicalizeFn>) -> Arc<Self> {
        let (name, key_prefix) = (name.to_owned(), Key::prefix("p", name));
        Arc::new(Self { header_name: None, canonicalize, name, key_prefix })
    }
}

/// Several parameters that name resources of one kind.
#[derive(Debug)]
pub(super) struct ParamGroup {
    pub(super) param_names: Vec<String>,
    pub(super) canonicalize: Option<CanonicalizeFn>,
    /// Name of the keys of all parameters; otherwise `from` 7 and `to` 7 would be two locks.
    pub(super) joined_name: String,
}

impl ParamGroup {
    /// Creates a group of the parameters with these names.
    ///
    /// # Errors
    ///
    /// If there are no names.
    pub(super) fn try_new(
        names: impl IntoIterator<Item = impl AsRef<str>>,
        canonicalize: Option<CanonicalizeFn>,
    ) -> Result<Arc<Self>, Error> {
        let names: Vec<_> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        if names.is_empty() {
            return Err(Error::setting("by_path_params: name at least one parameter"));
        }
        // A comma in a name must not read as two names.
        let escape = |name: &String| name.replace('%', "%25").replace(',', "%2C");
        let mut sorted: Vec<_> = names.iter().map(escape).collect();
        sorted.sort();
        sorted.dedup();
        let joined_name = sorted.join(",");
        Ok(Arc::new(Self { param_names: names, canonicalize, joined_name }))
    }
}

/// Returns the value of a parameter, decoded and in its canonical form.
///
/// # Errors
///
/// [`KeyError`] if there is no such value.
pub(super) fn read_param<V: GateRequest>(
    name: &str,
    canonicalize: Option<CanonicalizeFn>,
    view: &mut V,
) -> Result<String, KeyError> {
    match view.path_param(name) {
        Ok(Some(value)) => match canonicalize {
            Some(canonicalize) => {
                canonicalize(&value).ok_or(KeyError::BadRequest("A path segment can't be read"))
            }
            None => Ok(value),
        },
        Err(PathParamError::InvalidUtf8) => {
            Err(KeyError::BadRequest("A path segment is not UTF-8"))
        }
        Err(PathParamError::Duplicate) => {
            Err(KeyError::Misconfigured(duplicate_param_message(name, &view.route())))
        }
        Ok(None) => match view.route() {
            RouteMatch::Unmatched => Err(KeyError::Unmatched),
            RouteMatch::Matched(pattern) => Err(KeyError::Misconfigured(format!(
                "by_path_param(\"{name}\"): the route {pattern} has no such parameter"
            ))),
            RouteMatch::Unknown => Err(KeyError::Misconfigured(format!(
                "by_path_param(\"{name}\") found no route; put the layer inside the router"
            ))),
        },
    }
}

fn duplicate_param_message(name: &str, route: &RouteMatch) -> String {
    let pattern = match route {
        RouteMatch::Matched(pattern) => pattern,
        RouteMatch::Unmatched | RouteMatch::Unknown => "",
    };
    format!(
        "by_path_param(\"{name}\"): two parameters of the route {pattern} share a name; rename one of them"
    )
}
