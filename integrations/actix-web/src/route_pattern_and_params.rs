//! Patterns of actix-web's routes, and the parameters that they capture.

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use actix_web::{
    HttpRequest,
    dev::{Path, ResourceDef},
};
use lockgate::driver::PathParamError;
use percent_encoding::percent_decode_str;

/// Returns the pattern of the resource that has matched or, around the router, will match.
pub(crate) fn matched_pattern(request: &HttpRequest) -> Option<String> {
    let path = request.match_info();
    // Not `match_pattern()`, which compares the path as it was sent. The router compares the
    // decoded path, so `/%6frders/7` would be a 404 to the layer and an order to the router.
    let future_match = || request.resource_map().match_pattern(path.as_str());
    if path.unprocessed().is_empty() {
        // Inside a resource actix knows the match.
        request.match_pattern().or_else(future_match)
    } else {
        future_match()
    }
}

/// Returns a path parameter that actix has captured or, around the router, will capture.
pub(crate) fn raw_param<'a>(
    request: &'a HttpRequest,
    name: &str,
) -> Result<Option<Cow<'a, str>>, PathParamError> {
    let path = request.match_info();
    let mut values = path.iter().filter(|(found, _)| *found == name).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(PathParamError::Duplicate),
        (Some(value), None) if path.unprocessed().is_empty() => Ok(Some(value.into())),
        // Around a scope, an inner resource may have another parameter of this name.
        (Some(value), None) => match matched_pattern(request) {
            Some(pattern) if param_names(&pattern).filter(|found| *found == name).count() > 1 => {
                Err(PathParamError::Duplicate)
            }
            _ => Ok(Some(value.into())),
        },
        (None, None) => match matched_pattern(request) {
            Some(pattern) => Ok(capture_param(&pattern, path.as_str(), name)?.map(Cow::Owned)),
            None => Ok(None),
        },
    }
}

/// Returns the names of a pattern's parameters. The regular expression after a name may contain
/// braces.
fn param_names(pattern: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut start) = (0_usize, 0);
    pattern.char_indices().filter_map(move |(index, c)| {
        match c {
            '{' => {
                depth += 1;
                if depth == 1 {
                    start = index + 1;
                }
            }
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return pattern.get(start..index)?.split(':').next();
                }
            }
            _ => {}
        }
        None
    })
}

thread_local! {
    /// Resources by pattern; `None` if a pattern is not valid. The application defines the
    /// patterns, so there are at most as many entries as routes.
    static RESOURCE_CACHE: RefCell<HashMap<String, Option<Rc<ResourceDef>>>> = RefCell::default();
}

/// Captures a parameter from a path that the router has not matched yet.
fn capture_param(pattern: &str, path: &str, name: &str) -> Result<Option<String>, PathParamError> {
    let resource = RESOURCE_CACHE.with_borrow_mut(|resources| match resources.get(pattern) {
        Some(resource) => resource.clone(),
        None => {
            // Nested scopes can form a pattern that no single resource may have, such as one with a
            // repeated name; actix panics on it.
            let resource =
                catch_unwind(AssertUnwindSafe(|| Rc::new(ResourceDef::new(pattern)))).ok();
            resources.insert(pattern.to_owned(), resource.clone());
            resource
        }
    });
    let Some(resource) = resource else {
        let mut seen = HashSet::new();
        let is_repeated = !param_names(pattern).all(|name| seen.insert(name));
        return if is_repeated { Err(PathParamError::Duplicate) } else { Ok(None) };
    };
    let mut path = Path::new(path);
    resource.capture_match_info(&mut path);
    Ok(path.get(name).map(str::to_owned))
}

/// Decodes a captured value once more, as actix's `web::Path` does.
///
/// actix has decoded everything except `%25`, `%2B` and `%2F`. With the second step the key is that
/// of the value which the handler sees.
pub(crate) fn decode_param(text: &str) -> Result<String, PathParamError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| PathParamError::InvalidUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn param_names_match_actix_patterns() {
        for (pattern, expected) in [
            ("/orders", &[][..]),
            ("/tenants/{id}/orders/{id}/pay", &["id", "id"]),
            ("/a/{id:[0-9]{2}}/b/{id:\\d+}/{tail}*", &["id", "id", "tail"]),
            ("/odd}/{a}-{b}", &["a", "b"]),
        ] {
            assert_eq!(param_names(pattern).collect::<Vec<_>>(), expected, "{pattern}");
        }
    }
}
