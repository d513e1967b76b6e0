//! What keys are named by: parameters of a route, as they are in the request or as their type writes them, and header
//! fields.

use std::{fmt::Display, str::FromStr, sync::Arc};

use http::HeaderName;

use super::{
    fault::KeyFault,
    view::{BadParam, Route, View},
};
use crate::key::Key;

/// How a value is written in a key; `None` if it is none of that type.
///
/// A handler that takes its parameter as a number has order 7 for `7`, `07` and `+7`: three texts, and one resource.
pub(super) type Form = fn(&str) -> Option<String>;

/// As a value of this type writes itself, which is one text however it was spelt.
pub(super) fn form<T: FromStr + Display>(text: &str) -> Option<String> {
    text.parse::<T>().ok().map(|value| value.to_string())
}

/// A parameter or header field, with what is worked out of its name once for all requests.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: String,
    /// As a header field's, if it is one.
    pub(super) field: Option<HeaderName>,
    /// As a parameter's, if it has a type.
    pub(super) form: Option<Form>,
    pub(super) prefix: String,
}

impl Named {
    pub(super) fn field(name: &str) -> Arc<Self> {
        let (name, prefix) = (name.to_owned(), Key::prefix("h", name));
        let field = HeaderName::from_bytes(name.as_bytes()).ok();
        Arc::new(Self { field, form: None, name, prefix })
    }

    pub(super) fn param(name: &str, form: Option<Form>) -> Arc<Self> {
        let (name, prefix) = (name.to_owned(), Key::prefix("p", name));
        Arc::new(Self { field: None, form, name, prefix })
    }
}

/// Several parameters that name resources of one kind.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) names: Vec<String>,
    pub(super) form: Option<Form>,
    /// What stands in the keys for all of them, or `from` 7 and `to` 7 would be two locks.
    pub(super) joint: String,
}

impl Names {
    pub(super) fn new(
        names: impl IntoIterator<Item = impl AsRef<str>>,
        form: Option<Form>,
    ) -> Arc<Self> {
        let names: Vec<_> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        assert!(!names.is_empty(), "by_path_params: name one parameter at least");
        // A comma in a name must not read as two names.
        let escaped = |name: &String| name.replace('%', "%25").replace(',', "%2C");
        let mut sorted: Vec<_> = names.iter().map(escaped).collect();
        sorted.sort();
        sorted.dedup();
        Arc::new(Self { names, form, joint: sorted.join(",") })
    }
}

/// The value of this parameter, decoded.
///
/// # Errors
///
/// [`KeyFault`], when there is none.
pub(super) fn param<V: View>(
    name: &str,
    form: Option<Form>,
    view: &mut V,
) -> Result<String, KeyFault> {
    match view.param(name) {
        Ok(Some(value)) => match form {
            Some(form) => form(&value).ok_or(KeyFault::Request("A path segment can't be read")),
            None => Ok(value),
        },
        Err(BadParam::NotUtf8) => Err(KeyFault::Request("A path segment is not UTF-8")),
        Err(BadParam::Repeated) => Err(KeyFault::Wiring(repeated(name, &view.route()))),
        Ok(None) => match view.route() {
            Route::Unmatched => Err(KeyFault::Unmatched),
            Route::Matched(pattern) => Err(KeyFault::Wiring(format!(
                "by_path_param(\"{name}\"): the route {pattern} has no such parameter"
            ))),
            Route::Unknown => Err(KeyFault::Wiring(format!(
                "by_path_param(\"{name}\") sees no route here; put the layer inside the router"
            ))),
        },
    }
}

fn repeated(name: &str, route: &Route) -> String {
    let pattern = match route {
        Route::Matched(pattern) => pattern,
        Route::Unmatched | Route::Unknown => "",
    };
    format!(
        "by_path_param(\"{name}\"): two parameters of the route {pattern} share a name; rename one of them"
    )
}
