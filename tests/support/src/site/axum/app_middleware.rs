//! Middlewares of the application between the layers of lockgate.

use axum::{
    body::to_bytes,
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::super::{AppState, conflict_gate};

pub(super) async fn require_pass_header(mut request: Request, next: Next) -> Response {
    if request.headers_mut().remove("x-pass").is_none() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    next.run(request).await
}

pub(super) async fn replace_conflict_status(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if response.status() == StatusCode::CONFLICT {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
    }
    response
}

pub(super) async fn rebuild_response(request: Request, next: Next) -> Response {
    let (parts, body) = next.run(request).await.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    (parts.status, body).into_response()
}

pub(super) async fn delay_conflict_response(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let gate = conflict_gate(request.uri().query()).to_owned();
    let response = next.run(request).await;
    if response.status() == StatusCode::CONFLICT {
        app.handler.sync_points.wait_at(&gate).await;
    }
    response
}
