//! The status resource as a `Router`.

use axum::{
    Router,
    body::Body,
    extract::{Path, Request},
    response::Response,
    routing::any,
};
use http::request::Parts;
use lockgate::{
    defer::StatusGate,
    middleware::{PartsView, response},
};

use crate::{framework::Axum, layer::DeferredRoutes};

impl<S: Clone + Send + Sync + 'static> From<DeferredRoutes> for Router<S> {
    fn from(routes: DeferredRoutes) -> Self {
        let DeferredRoutes { path, gate } = routes;
        let document = gate.clone();
        Self::new()
            .route(
                &format!("{path}/{{id}}"),
                any(move |Path(id): Path<String>, request: Request| {
                    answer(document.clone(), id, request, false)
                }),
            )
            .route(
                &format!("{path}/{{id}}/response"),
                any(move |Path(id): Path<String>, request: Request| {
                    answer(gate.clone(), id, request, true)
                }),
            )
    }
}

async fn answer(gate: StatusGate<Parts>, id: String, request: Request, whole: bool) -> Response {
    let (mut parts, _) = request.into_parts();
    let asked = gate.ask(&mut PartsView::<Axum>::new(&mut parts), &id, whole);
    let reply = match asked {
        Ok(request) => request.answer().await,
        Err(reply) => reply,
    };
    response::<Body>(reply).map(Body::new)
}
