//! The status resource as a `Router`.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures_util::StreamExt as _;
use http::request::Parts;
use lockgate::{
    Reply,
    defer::{StatusAnswer, StatusGate},
    middleware::{Framework as _, PartsView, response},
};

use crate::{framework::Axum, layer::DeferredRoutes};

impl<S: Clone + Send + Sync + 'static> From<DeferredRoutes> for Router<S> {
    fn from(routes: DeferredRoutes) -> Self {
        let DeferredRoutes { path, gate } = routes;
        let document = gate.clone();
        Self::new()
            .route(
                &format!("{path}/{{id}}"),
                any(move |request: Request| answer(document.clone(), request, false)),
            )
            .route(
                &format!("{path}/{{id}}/response"),
                any(move |request: Request| answer(gate.clone(), request, true)),
            )
    }
}

async fn answer(gate: StatusGate<Parts>, request: Request, whole: bool) -> Response {
    let (mut parts, _) = request.into_parts();
    // An id of bytes that are no text is an unknown id like any other.
    let id = Axum::param(&mut parts, "id").ok().flatten().unwrap_or_default();
    let asked = gate.ask(&mut PartsView::<Axum>::new(&mut parts), &id, whole);
    let answer = match asked {
        Ok(request) => request.answer().await,
        Err(reply) => return whole_answer(reply),
    };
    match answer {
        StatusAnswer::Whole(reply) => whole_answer(reply),
        StatusAnswer::Events(head, events) => {
            whole_answer(head).map(|_| Body::from_stream(events.map(Ok::<_, Infallible>)))
        }
        // A kind of a newer version of the core.
        _ => whole_answer(Reply::wiring_fault()),
    }
}

fn whole_answer(reply: Reply) -> Response {
    response::<Body>(reply).map(Body::new)
}
