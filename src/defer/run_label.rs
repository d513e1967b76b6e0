//! `RunLabel`: method and route of a deferred request and its runs, for log records.

use std::sync::OnceLock;

use super::{envelope::StoredRequest, webhook};
use crate::gate::{GateRequest, RouteMatch};

/// Method and route pattern of a deferred request, as far as they are known. The path
/// itself is never logged, because its parameters may be personal data.
#[derive(Debug, Default)]
pub(super) struct RunLabel {
    method: Option<String>,
    /// Pattern of the route that has deferred the request.
    stored_route: Option<String>,
    /// Pattern of the route that the run has reached.
    reached_route: OnceLock<String>,
}

impl RunLabel {
    /// Reads the label of a stored request. A webhook has none.
    pub(super) fn of_request(request: &StoredRequest) -> Self {
        let head = &request.head;
        if head.method == webhook::WEBHOOK_METHOD {
            return Self::default();
        }
        Self {
            method: Some(head.method.clone()),
            stored_route: request.route.clone(),
            reached_route: OnceLock::new(),
        }
    }

    /// Reads the label of a request that is about to be stored.
    pub(super) fn of_view<V: GateRequest>(view: &mut V) -> Self {
        let stored_route = match view.route() {
            RouteMatch::Matched(route) => Some(route),
            _ => None,
        };
        let method = Some(view.method().to_owned());
        Self { method, stored_route, reached_route: OnceLock::new() }
    }

    /// Records the route that the run has reached.
    pub(super) fn record_route(&self, route: &str) {
        let _ = self.reached_route.set(route.to_owned());
    }

    pub(super) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    pub(super) fn route(&self) -> Option<&str> {
        self.reached_route.get().or(self.stored_route.as_ref()).map(String::as_str)
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

    fn stored_request(method: &str, route: Option<&str>) -> StoredRequest {
        StoredRequest {
            head: HttpRequestHead::new(method, "/orders/7?ms=1", Vec::new(), None),
            snapshots: SavedSnapshots::new(),
            max_attempts: 1,
            route: route.map(str::to_owned),
            body: Bytes::new(),
        }
    }

    #[test]
    fn a_run_has_the_route_of_its_request_and_never_its_path() {
        let old = RunLabel::of_request(&stored_request("POST", None));
        assert_eq!((old.method(), old.route()), (Some("POST"), None));
        let deferred = RunLabel::of_view(&mut FakeGateRequest::new("POST"));
        assert_eq!((deferred.method(), deferred.route()), (Some("POST"), Some("/orders/{id}")));
        let run = RunLabel::of_request(&stored_request("PUT", deferred.route()));
        assert_eq!((run.method(), run.route()), (Some("PUT"), Some("/orders/{id}")));
        run.record_route("/orders/{number}");
        assert_eq!(run.route(), Some("/orders/{number}"), "the route that the run has reached");
        let webhook = stored_request(webhook::WEBHOOK_METHOD, None);
        let webhook = RunLabel::of_request(&webhook);
        assert_eq!((webhook.method(), webhook.route()), (None, None));
    }
}
