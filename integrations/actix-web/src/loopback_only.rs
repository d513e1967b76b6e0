//! `loopback_only`, the middleware of pages for this machine alone.

use actix_web::{
    Error,
    body::{EitherBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    middleware::Next,
};
use lockgate::driver::LoopbackGuard;

use crate::{reply_to_response::response_from_reply, request_view::RequestView};

/// Answers 403 to each request that did not come from this machine, for pages of its operators such
/// as `/metrics`. Requests through a proxy on this machine are refused too.
///
/// See the core's [`LoopbackGuard`]. Dropping the future drops the inner call.
///
/// ```
/// # use actix_web::{App, middleware::from_fn, web};
/// # use lockgate_actix_web::loopback_only;
/// let metrics = web::resource("/metrics").get(async || "lockgate_locks_held 0\n");
/// let app = App::new().service(metrics.wrap(from_fn(loopback_only)));
/// # drop(app);
/// ```
///
/// # Errors
///
/// Those of the inner service.
pub async fn loopback_only<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let verdict = LoopbackGuard::check(&RequestView::new(request.request()));
    match verdict {
        Ok(()) => Ok(next.call(request).await?.map_into_left_body()),
        Err(reply) => Ok(request.into_response(response_from_reply(reply)).map_into_right_body()),
    }
}
