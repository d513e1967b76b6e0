//! `HoldRoute`: method and route pattern of the request that holds a lock, for operators.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

/// Method and route pattern of a request, such as `POST /orders/{id}`. It never has the path, whose
/// parameters may be personal data.
///
/// Most requests share the text of an earlier request of their thread, so that a locked request
/// needs no memory for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldRoute(Arc<str>);

/// Most patterns that a thread keeps. An application has fewer routes.
const MAX_KEPT_PATTERNS: usize = 1_024;

/// Methods with a name of their own. Others are client input, and are shown as `_OTHER`, as in
/// OpenTelemetry's `http.request.method`.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

/// Routes of one pattern, by method.
type PatternRoutes = Vec<(&'static str, HoldRoute)>;

thread_local! {
    static KEPT_ROUTES: RefCell<HashMap<Box<str>, PatternRoutes>> = RefCell::default();
}

impl HoldRoute {
    pub(crate) fn new(method: &str, pattern: &str) -> Self {
        let method = Self::method_name(method);
        KEPT_ROUTES.with_borrow_mut(|kept| {
            let routes = kept.get(pattern).into_iter().flatten();
            if let Some((_, route)) = routes.into_iter().find(|(known, _)| *known == method) {
                return route.clone();
            }
            let route = Self(format!("{method} {pattern}").into());
            if kept.len() < MAX_KEPT_PATTERNS {
                kept.entry(pattern.into()).or_default().push((method, route.clone()));
            }
            route
        })
    }

    /// Returns the method, or `_OTHER` for one of a client's making.
    pub(crate) fn method_name(method: &str) -> &'static str {
        METHODS.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_kept_once_and_has_no_method_of_a_client() {
        let route = HoldRoute::new("POST", "/orders/{id}");
        assert_eq!(route.as_str(), "POST /orders/{id}");
        assert!(Arc::ptr_eq(&route.0, &HoldRoute::new("POST", "/orders/{id}").0));
        assert_eq!(HoldRoute::new("GET", "/orders/{id}").as_str(), "GET /orders/{id}");
        assert_eq!(HoldRoute::new("B0GUS", "/orders/{id}").as_str(), "_OTHER /orders/{id}");
    }

    #[test]
    fn many_patterns_do_not_fill_the_memory() {
        for number in 0..2 * MAX_KEPT_PATTERNS {
            HoldRoute::new("GET", &format!("/{number}"));
        }
        assert_eq!(KEPT_ROUTES.with_borrow(HashMap::len), MAX_KEPT_PATTERNS);
    }
}
