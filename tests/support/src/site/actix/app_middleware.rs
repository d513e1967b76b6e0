//! Middlewares of the application between the layers of lockgate.

use actix_web::{
    Error, HttpResponse,
    body::{MessageBody, to_bytes},
    dev::{ServiceRequest, ServiceResponse},
    http::StatusCode,
    middleware::Next,
    web::Data,
};

use super::super::{AppState, conflict_gate};

pub(super) async fn require_pass_header(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if request.headers_mut().remove("x-pass").next().is_none() {
        let refused = request.into_response(HttpResponse::new(StatusCode::UNAUTHORIZED));
        return Ok(refused.map_into_right_body());
    }
    next.call(request).await.map(ServiceResponse::map_into_left_body)
}

pub(super) async fn replace_conflict_status(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let mut response = next.call(request).await?;
    if response.status() == StatusCode::CONFLICT {
        *response.response_mut().status_mut() = StatusCode::IM_A_TEAPOT;
    }
    Ok(response)
}

pub(super) async fn rebuild_response(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let (request, response) = next.call(request).await?.into_parts();
    let status = response.status();
    let body = to_bytes(response.into_body()).await.unwrap_or_default();
    Ok(ServiceResponse::new(request, HttpResponse::build(status).body(body)))
}

pub(super) async fn delay_conflict_response(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let gate = conflict_gate(request.uri().query()).to_owned();
    let app = request.app_data::<Data<AppState>>().cloned();
    let response = next.call(request).await?;
    if let Some(app) = app.filter(|_| response.status() == StatusCode::CONFLICT) {
        app.handler.sync_points.wait_at(&gate).await;
    }
    Ok(response)
}
