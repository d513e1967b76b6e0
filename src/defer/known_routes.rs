//! `KnownRoutes`: route patterns that this process has seen, so that the log can name the route of
//! a stored request without its parameters.

use std::sync::Arc;

use parking_lot::Mutex;

/// Most patterns that are kept. An application has fewer routes with a lock; with a fallback route
/// as the only one there would be one.
const MAX_ROUTES: usize = 256;

/// Route patterns of deferred requests and runs: `store.extension::<KnownRoutes>()`.
///
/// A stored request has its path and no pattern, and the path may hold personal data. A process
/// learns the pattern when it defers a request of the route, or when a run meets its `LockLayer`.
/// Until then the log leaves it out.
#[derive(Debug, Default)]
pub(super) struct KnownRoutes(Mutex<Vec<Arc<str>>>);

impl KnownRoutes {
    /// Adds a pattern, such as `/orders/{id}/refund`, and returns it.
    pub(super) fn add(&self, route: &str) -> Arc<str> {
        let mut routes = self.0.lock();
        if let Some(known) = routes.iter().find(|known| &***known == route) {
            return Arc::clone(known);
        }
        let route: Arc<str> = route.into();
        if routes.len() < MAX_ROUTES {
            routes.push(Arc::clone(&route));
        }
        route
    }

    /// Returns the pattern that matches the target of a request. Of several, it is the one with the
    /// most literal segments, which routers prefer too.
    pub(super) fn find(&self, target: &str) -> Option<Arc<str>> {
        let path = target.split('?').next().unwrap_or_default();
        let routes = self.0.lock();
        let matching =
            routes.iter().filter_map(|route| Some((literal_matches(route, path)?, route)));
        matching.max_by_key(|(literals, _)| *literals).map(|(_, route)| Arc::clone(route))
    }
}

/// Returns the number of literal segments of a pattern that matches the path, or `None` if it does
/// not match. A segment with `{` matches any text; one for the rest of a path (`{*rest}` in axum,
/// `{rest:.*}` or `{rest}*` in actix-web) matches any number of segments.
fn literal_matches(route: &str, path: &str) -> Option<usize> {
    let (mut patterns, mut segments, mut literals) = (route.split('/'), path.split('/'), 0);
    loop {
        match (patterns.next(), segments.next()) {
            (None, None) => return Some(literals),
            (Some(pattern), _) if is_tail(pattern) => return Some(literals),
            (Some(pattern), Some(segment)) if pattern == segment => literals += 1,
            (Some(pattern), Some(segment)) if pattern.contains('{') && !segment.is_empty() => {}
            _ => return None,
        }
    }
}

fn is_tail(pattern: &str) -> bool {
    pattern.starts_with("{*") || pattern.ends_with(":.*}") || pattern.ends_with("}*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_matched_with_the_most_literal_pattern() {
        let routes = KnownRoutes::default();
        for route in ["/orders/{id}", "/orders/{id}/refund", "/orders/new", "/files/{*path}"] {
            routes.add(route);
        }
        let found = |target: &str| routes.find(target).map(|route| route.to_string());
        assert_eq!(found("/orders/7/refund?ms=1").as_deref(), Some("/orders/{id}/refund"));
        assert_eq!(found("/orders/new").as_deref(), Some("/orders/new"));
        assert_eq!(found("/orders/7").as_deref(), Some("/orders/{id}"));
        assert_eq!(found("/files/a/b").as_deref(), Some("/files/{*path}"));
        assert_eq!(found("/orders//refund"), None);
        assert_eq!(found("/users/7"), None);
    }

    #[test]
    fn the_number_of_patterns_is_bounded() {
        let routes = KnownRoutes::default();
        for n in 0..MAX_ROUTES + 10 {
            routes.add(&format!("/{n}"));
            routes.add("/0");
        }
        assert_eq!(routes.0.lock().len(), MAX_ROUTES);
    }
}
