//! Status resource as a `Router`.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures_util::StreamExt as _;
use http::request::Parts;
use lockgate::{
    Reply,
    defer::{StatusGate, StatusReply},
    middleware::{Framework as _, PartsView, response_from_reply},
};

use crate::{axum_framework::AxumFramework, layers::DeferredRoutes};

impl<S: Clone + Send + Sync + 'static> From<DeferredRoutes> for Router<S> {
    fn from(routes: DeferredRoutes) -> Self {
        let DeferredRoutes { path, gate } = routes;
        let document = gate.clone();
        Self::new()
            .route(
                &format!("{path}/{{id}}"),
                any(move |request: Request| status_response(document.clone(), request, false)),
            )
            .route(
                &format!("{path}/{{id}}/response"),
                any(move |request: Request| status_response(gate.clone(), request, true)),
            )
    }
}

async fn status_response(gate: StatusGate<Parts>, request: Request, whole: bool) -> Response {
    let (mut parts, _) = request.into_parts();
    // An id that is not valid UTF-8 is an unknown id.
    let id = AxumFramework::path_param(&mut parts, "id").ok().flatten().unwrap_or_default();
    let asked = gate.parse_request(&mut PartsView::<AxumFramework>::new(&mut parts), &id, whole);
    let answer = match asked {
        Ok(request) => request.execute().await,
        Err(reply) => return reply_response(reply),
    };
    match answer {
        StatusReply::Complete(reply) => reply_response(reply),
        StatusReply::Events(head, events) => {
            reply_response(head).map(|_| Body::from_stream(events.map(Ok::<_, Infallible>)))
        }
        // Variant that a newer version of the core crate has added.
        _ => reply_response(Reply::misconfigured()),
    }
}

fn reply_response(reply: Reply) -> Response {
    response_from_reply::<Body>(reply).map(Body::new)
}
