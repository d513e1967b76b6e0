//! `Framework`: access to a router's data in an `http` request; `PlainHttp` for no router.

use std::{borrow::Cow, convert, net::SocketAddr};

use bytes::Bytes;
use http::{Extensions, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};

use super::{
    gate_body::{BoxError, GateBody},
    timed_and_hashed_body::{TimedBody, UntimedBody},
};
use crate::gate::{PathParamError, RouteMatch};

/// Access to a router's data in an `http` request.
pub trait Framework: Copy + Send + Sync + 'static {
    /// The request body with which a [`DeferWorker`](crate::defer::DeferWorker) calls the routes.
    type RequestBody: From<Bytes> + Send + 'static;

    /// The response body, for an inner service with the body `R`. [`GateBody<R>`](GateBody) suits
    /// any framework. A framework with one type for all bodies names that, and can take an inner
    /// body of that type unchanged: [`GateBody::into_inner`].
    type ResponseBody<R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static>: Body<Data = Bytes, Error: Into<BoxError>>
        + Send
        + 'static;

    /// Converts the body of a response.
    fn response_body<R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static>(
        body: GateBody<R>,
    ) -> Self::ResponseBody<R>;

    /// Returns the result of routing.
    fn route(parts: &mut Parts) -> RouteMatch;

    /// Returns the pattern of the route, if it matched one; see
    /// [`GateRequest::route_pattern`](crate::driver::GateRequest::route_pattern).
    fn route_pattern(parts: &mut Parts) -> Option<Cow<'_, str>> {
        match Self::route(parts) {
            RouteMatch::Matched(pattern) => Some(pattern.into()),
            _ => None,
        }
    }

    /// Returns a path parameter, percent-decoded; `None` if the route has none of this name.
    ///
    /// # Errors
    ///
    /// [`PathParamError`] if the value is not UTF-8, or if the route has two parameters of this
    /// name.
    fn path_param(parts: &mut Parts, name: &str) -> Result<Option<String>, PathParamError>;

    /// Returns the address of the socket's peer, if the server put it into the request.
    fn peer_addr(extensions: &Extensions) -> Option<SocketAddr>;

    /// Inserts the address of the socket's peer into a request that runs again.
    fn insert_peer_addr(extensions: &mut Extensions, peer: SocketAddr);

    /// Returns path and query as the client sent them.
    fn target(parts: &Parts) -> String {
        parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
    }

    /// Returns cause and fix if this response is the framework's own error about an extractor whose
    /// value is missing. The routes of a [`DeferWorker`](crate::defer::DeferWorker) may lack a
    /// value that they have in the server. Default: no such error is known.
    #[must_use]
    fn missing_value(_status: u16, _body: &[u8]) -> Option<&'static str> {
        None
    }

    /// Times a request body, if its type can hold a timed one. Default: it can't, which is logged
    /// once.
    fn time_body<B: Body<Data = Bytes> + Send + 'static>(body: UntimedBody<B>) -> B {
        body.leave_untimed()
    }
}

/// No router: plain hyper, tonic, or another tower stack. The peer is a `SocketAddr` extension.
///
/// A `body_read_timeout` applies to bodies of the type `UnsyncBoxBody<Bytes, Box<dyn Error + Send +
/// Sync>>` alone: hyper's `Incoming` can't hold another body. For other bodies, `max_hold` is the
/// only limit on a lock with a slow client.
#[derive(Debug, Clone, Copy)]
pub struct PlainHttp;

type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

impl Framework for PlainHttp {
    type RequestBody = Full<Bytes>;

    type ResponseBody<R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> = GateBody<R>;

    fn response_body<R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static>(
        body: GateBody<R>,
    ) -> GateBody<R> {
        body
    }

    fn route(_: &mut Parts) -> RouteMatch {
        RouteMatch::Unknown
    }

    fn path_param(_: &mut Parts, _: &str) -> Result<Option<String>, PathParamError> {
        Ok(None)
    }

    fn peer_addr(extensions: &Extensions) -> Option<SocketAddr> {
        extensions.get().copied()
    }

    fn insert_peer_addr(extensions: &mut Extensions, peer: SocketAddr) {
        extensions.insert(peer);
    }

    fn time_body<B: Body<Data = Bytes> + Send + 'static>(body: UntimedBody<B>) -> B {
        let timed = body.try_time_as::<BoxedBody>(convert::identity, TimedBody::boxed_unsync);
        timed.unwrap_or_else(UntimedBody::leave_untimed)
    }
}
