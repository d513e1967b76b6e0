//! Patterns of actix-web's routes, and the parameters they capture.

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
use lockgate::gate::PathParamError;
use percent_encoding::percent_decode_str;

/// The pattern of the resource that has matched or, around the router, of the one that will.
pub(crate) fn matched_pattern(request: &HttpRequest) -> Option<String> {
    let path = request.match_info();
    // Not `match_pattern()`, which compares the path as it was sent: the router compares it decoded,
    // so `/%6frders/7` would be a 404 to the layer and an order to the router.
    let expected = || request.resource_map().match_pattern(path.as_str());
    if path.unprocessed().is_empty() {
        // Inside a resource, where actix knows exactly.
        request.match_pattern().or_else(expected)
    } else {
        expected()
    }
}

/// A path parameter as actix captured it or, around the router, will capture it.
pub(crate) fn raw_param<'a>(
    request: &'a HttpRequest,
    name: &str,
) -> Result<Option<Cow<'a, str>>, PathParamError> {
    let path = request.match_info();
    let mut values = path.iter().filter(|(found, _)| *found == name).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(PathParamError::Duplicate),
        (Some(value), None) if path.unprocessed().is_empty() => Ok(Some(value.into())),
        // Around a scope a resource inside may have another parameter of this name.
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

/// The names of a pattern's parameters. A regular expression after a name may have braces of its own.
fn param_names(pattern: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut begin) = (0_usize, 0);
    pattern.char_indices().filter_map(move |(at, c)| {
        match c {
            '{' => {
                depth += 1;
                if depth == 1 {
                    begin = at + 1;
                }
            }
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return pattern.get(begin..at)?.split(':').next();
                }
            }
            _ => {}
        }
        None
    })
}

thread_local! {
    /// Resources by pattern; `None` if there can't be one. Patterns are the application's, not the
    /// client's, so there are as many as it has routes.
    static RESOURCE_CACHE: RefCell<HashMap<String, Option<Rc<ResourceDef>>>> = RefCell::default();
}

fn capture_param(pattern: &str, path: &str, name: &str) -> Result<Option<String>, PathParamError> {
    let resource = RESOURCE_CACHE.with_borrow_mut(|resources| match resources.get(pattern) {
        Some(resource) => resource.clone(),
        None => {
            // Scopes can be joined to what no single resource may be, such as one name twice; actix
            // panics over it.
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

/// actix has decoded everything but `%25`, `%2B` and `%2F`, so what is left is decoded once more, just
/// as its `web::Path` does: the key is of the value that the handler sees.
pub(crate) fn decode_param(text: &str) -> Result<String, PathParamError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| PathParamError::InvalidUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_actix_sees() {
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
