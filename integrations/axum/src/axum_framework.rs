//! `AxumFramework`, axum's implementation of `Framework`: routes, path parameters and addresses of
//! a request, and its bodies.

use std::{borrow::Cow, net::SocketAddr, sync::LazyLock};

use axum::{
    Extension, Router,
    body::{Body, Bytes, HttpBody},
    extract::{
        ConnectInfo, FromRequestParts as _, MatchedPath, NestedPath, OriginalUri, RawPathParams,
        Request, connect_info::MockConnectInfo, rejection::RawPathParamsRejection,
    },
    routing::any,
};
use futures_util::FutureExt as _;
use http::{Extensions, request::Parts};
use lockgate::{
    driver::{PathParamError, RouteMatch},
    middleware::{BoxError, Framework, GateBody, UntimedBody},
};
use tower_service::Service as _;

/// [`Framework`] of axum 0.8, the type parameter of the core's layers.
#[derive(Debug, Clone, Copy)]
pub struct AxumFramework;

impl Framework for AxumFramework {
    type RequestBody = Body;

    type ResponseBody<R: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static> = Body;

    /// Passes the body on unchanged if the inner service returned a [`Body`], which is the common
    /// case.
    fn response_body<R: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static>(
        body: GateBody<R>,
    ) -> Body {
        body.into_inner().map_or_else(Body::new, Body::new)
    }

    fn route(parts: &mut Parts) -> RouteMatch {
        if let Some(matched) = parts.extensions.get::<MatchedPath>() {
            return RouteMatch::Matched(matched.as_str().to_owned());
        }
        // A request inside a router without a match belongs to its fallback. Around a router, or
        // before a nested service, nothing is known yet.
        match raw_path_params(parts) {
            Ok(_) if !is_entering_nested_service(&parts.extensions) => RouteMatch::Unmatched,
            _ => RouteMatch::Unknown,
        }
    }

    fn route_pattern(parts: &mut Parts) -> Option<Cow<'_, str>> {
        parts.extensions.get::<MatchedPath>().map(|matched| matched.as_str().into())
    }

    fn path_param(parts: &mut Parts, name: &str) -> Result<Option<String>, PathParamError> {
        match raw_path_params(parts) {
            Ok(params) => {
                let mut matches = params.iter().filter(|(found, _)| *found == name);
                match (matches.next(), matches.next()) {
                    (_, Some(_)) => Err(PathParamError::Duplicate),
                    (found, None) => Ok(found.map(|(_, value)| value.to_owned())),
                }
            }
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
                Err(PathParamError::InvalidUtf8)
            }
            Err(_) => Ok(None),
        }
    }

    fn peer_addr(extensions: &Extensions) -> Option<SocketAddr> {
        let connected = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        // Address that tests provide; axum's own extractor reads it too.
        let mocked = || extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| info.0);
        connected.or_else(mocked)
    }

    fn insert_peer_addr(extensions: &mut Extensions, peer: SocketAddr) {
        extensions.insert(ConnectInfo(peer));
    }

    /// Returns the original target, since `uri()` lacks the prefix inside a nested router.
    fn target(parts: &Parts) -> String {
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
    }

    fn missing_value(status: u16, body: &[u8]) -> Option<&'static str> {
        // The rejection of `Extension`.
        let is_missing_extension = status == 500 && body.starts_with(MISSING_EXTENSION);
        is_missing_extension.then_some(
            "the handler takes an Extension that the routes of the worker do not have; put its \
             layer around the routes before DeferWorker::new gets them, or carry the user by \
             .for_user::<U>() on the DeferLayer and on the worker (if both have it, the request had \
             no user: put the layer of the authentication outside of the DeferLayer)",
        )
    }

    fn time_body<B: HttpBody<Data = Bytes> + Send + 'static>(body: UntimedBody<B>) -> B {
        // Unwraps the error, so that a body over its limit still results in 413.
        let timed = body.try_time_as::<Body>(axum::Error::into_inner, Body::new);
        timed.unwrap_or_else(UntimedBody::leave_untimed)
    }
}

/// Beginning of axum's response (0.8) to a request without the extension that its handler takes.
const MISSING_EXTENSION: &[u8] = b"Missing request extension";

#[expect(clippy::expect_used, reason = "it only reads the request's extensions")]
fn raw_path_params(parts: &mut Parts) -> Result<RawPathParams, RawPathParamsRejection> {
    let params = RawPathParams::from_request_parts(parts, &());
    // The extractor only reads the request's extensions, so it never waits.
    params.now_or_never().expect("reading path parameters does not wait")
}

/// Returns true if the prefix of a nested service has matched and that service has not been called
/// yet.
///
/// axum does not expose this, but puts the prefix in front of the next matched path, so a router
/// with one route shows it.
fn is_entering_nested_service(extensions: &Extensions) -> bool {
    static NEST_PROBE: LazyLock<Router> = LazyLock::new(|| {
        Router::new().route("/", any(async |matched: MatchedPath| Extension(matched)))
    });
    let mut request = Request::new(Body::empty());
    // The probe modifies the extensions, so it gets a copy.
    *request.extensions_mut() = extensions.clone();
    let response = NEST_PROBE.clone().call(request).now_or_never().and_then(Result::ok);
    let matched = response.and_then(|response| response.extensions().get::<MatchedPath>().cloned());
    let matched = matched.as_ref().map_or("", |matched| matched.as_str().trim_end_matches('/'));
    // Path with which the nested service was called.
    let entered = extensions.get::<NestedPath>().map_or("", NestedPath::as_str);
    !entered.trim_end_matches('/').ends_with(matched)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::routing::get;
    use lockgate::Store;
    use tower::ServiceExt as _;

    use super::*;
    use crate::{Quota, RateLimitLayer};

    /// The text is that of the axum that this crate is built with.
    #[tokio::test]
    async fn rejection_of_a_missing_extension_is_recognized() {
        let app = Router::new()
            .route("/missing", get(async |_: Extension<u32>| ""))
            .route("/failed", get(async || (http::StatusCode::INTERNAL_SERVER_ERROR, "failed")));
        for (path, expected) in [("/missing", true), ("/failed", false)] {
            let request = Request::get(path).body(Body::empty()).expect("valid");
            let response = app.clone().oneshot(request).await.expect("a router has no errors");
            assert_eq!(response.status(), 500);
            let body = axum::body::to_bytes(response.into_body(), 1000).await.expect("short");
            let found = AxumFramework::missing_value(500, &body);
            assert_eq!(found.is_some_and(|text| text.contains("takes an Extension")), expected);
        }
    }

    /// As in axum's own extractor, so that tests of an application need no server.
    #[tokio::test]
    async fn mocked_connect_info_is_the_client_address() {
        let limit = RateLimitLayer::by_ip(Quota::requests(1).per(Duration::from_secs(3600)));
        let app = Router::new()
            .route("/", get(async || ""))
            .layer(limit.store(&Store::memory()))
            .layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 7))));
        for status in [200, 429] {
            let request = Request::new(Body::empty());
            let response = app.clone().oneshot(request).await.expect("a router has no errors");
            assert_eq!(response.status(), status);
        }
    }
}
