//! `RunLabel`: method and route of a deferred request and its runs, for log records.

use std::sync::{Arc, OnceLock};

use super::{envelope::StoredRequest, known_routes::KnownRoutes, webhook};
use crate::{
    gate::{GateRequest, RouteMatch},
    store::Store,
};

/// Method and route pattern of a deferred request, as far as this process knows them. The path
/// itself is never logged, because its parameters may be personal data.
#[derive(Debug, Default)]
pub(super) struct RunLabel {
    method: Option<String>,
    /// Pattern that matches the stored path.
    known_route: Option<Arc<str>>,
    /// Pattern of the route that the request or its run has reached.
    reached_route: OnceLock<Arc<str>>,
}

impl RunLabel {
    /// Reads the label of a stored request. A webhook has none.
    pub(super) fn of_request(store: &Store, request: &StoredRequest) -> Self {
        let head = &request.head;
        if head.method == webhook::WEBHOOK_METHOD {
            return Self::default();
        }
        Self {
            method: Some(head.method.clone()),
            known_route: store.extension::<KnownRoutes>().find(&head.target),
            reached_route: OnceLock::new(),
        }
    }

    /// Reads the label of a request that is about to be stored.
    pub(super) fn of_view<V: GateRequest>(store: &Store, view: &mut V) -> Self {
        let label = Self { method: Some(view.method().to_owned()), ..Self::default() };
        if let RouteMatch::Matched(route) = view.route() {
            label.record_route(store, &route);
        }
        label
    }

    /// Records the route that the run has reached, for this run and later ones.
    pub(super) fn record_route(&self, store: &Store, route: &str) {
        let _ = self.reached_route.set(store.extension::<KnownRoutes>().add(route));
    }

    pub(super) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    pub(super) fn route(&self) -> Option<&str> {
        self.reached_route.get().or(self.known_route.as_ref()).map(|route| &**route)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        defer::extension_snapshot::SavedSnapshots,
        gate::{HttpRequestHead, fake_request::FakeGateRequest},
    };

    fn stored_request(method: &str, target: &str) -> StoredRequest {
        StoredRequest {
            head: HttpRequestHead::new(method, target, Vec::new(), None),
            snapshots: SavedSnapshots::new(),
            max_attempts: 1,
            body: Bytes::new(),
        }
    }

    #[test]
    fn a_run_has_the_route_of_an_earlier_request_and_never_its_path() {
        let store = Store::memory();
        let before = RunLabel::of_request(&store, &stored_request("POST", "/orders/7?ms=1"));
        assert_eq!((before.method(), before.route()), (Some("POST"), None));
        let deferred = RunLabel::of_view(&store, &mut FakeGateRequest::new("POST"));
        assert_eq!((deferred.method(), deferred.route()), (Some("POST"), Some("/orders/{id}")));
        let run = RunLabel::of_request(&store, &stored_request("PUT", "/orders/7?ms=1"));
        assert_eq!((run.method(), run.route()), (Some("PUT"), Some("/orders/{id}")));
        run.record_route(&store, "/orders/{number}");
        assert_eq!(run.route(), Some("/orders/{number}"), "the route that the run has reached");
        let webhook = stored_request(webhook::WEBHOOK_METHOD, "https://example.org/orders/7");
        let webhook = RunLabel::of_request(&store, &webhook);
        assert_eq!((webhook.method(), webhook.route()), (None, None));
    }
}
