//! The application's own layers, between ours.

use axum::{
    body::to_bytes,
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::super::{App, late_gate};

pub(super) async fn guard(mut request: Request, next: Next) -> Response {
    if request.headers_mut().remove("x-pass").is_none() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    next.run(request).await
}

pub(super) async fn rewrite(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if response.status() == StatusCode::CONFLICT {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
    }
    response
}

pub(super) async fn rebuild(request: Request, next: Next) -> Response {
    let (parts, body) = next.run(request).await.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    (parts.status, body).into_response()
}

pub(super) async fn late(State(app): State<App>, request: Request, next: Next) -> Response {
    let gate = late_gate(request.uri().query()).to_owned();
    let response = next.run(request).await;
    if response.status() == StatusCode::CONFLICT {
        app.desk.gates.pass(&gate).await;
    }
    response
}
