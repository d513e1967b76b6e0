//! `operators_only`, the middleware of other pages for operators.

use actix_web::{
    Error, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    middleware::Next,
};
use lockgate::console::{ConsoleGuard, admit_operator};

use crate::{reply_to_response::response_from_reply, request_view::RequestView};

/// Answers 401 or 403 to each request that the guard refuses, for pages of operators beside the
/// [`console`](crate::console()), such as `/metrics`.
///
/// The guard is one of the console's. [`BasicAuth`](crate::BasicAuth) is shared in an `Arc`. For
/// the machine itself, [`loopback_only`](crate::loopback_only) needs no feature. Dropping the
/// future drops the inner call.
///
/// ```
/// # use actix_web::{App, HttpRequest, middleware::from_fn, web};
/// # use actix_web::test::{TestRequest, call_service, init_service};
/// # use lockgate_actix_web::{admin::{Operator, Permission}, operators_only};
/// # #[actix_web::main]
/// # async fn main() {
/// // Behind a proxy that authenticates its users and is the only one that can connect.
/// let staff = |request: &HttpRequest| {
///     let name = request.headers().get("x-authenticated-user")?.to_str().ok()?;
///     Some(Operator::new(name, Permission::Look))
/// };
/// let metrics = web::resource("/metrics")
///     .get(async || "lockgate_locks_held 0\n")
///     .wrap(from_fn(move |request, next| operators_only(staff, request, next)));
/// let app = init_service(App::new().service(metrics)).await;
///
/// let request = TestRequest::get().uri("/metrics");
/// assert_eq!(call_service(&app, request.to_request()).await.status(), 403);
/// let request = TestRequest::get().uri("/metrics");
/// let request = request.insert_header(("x-authenticated-user", "prometheus"));
/// assert_eq!(call_service(&app, request.to_request()).await.status(), 200);
/// # }
/// ```
///
/// # Errors
///
/// Those of the inner service.
pub async fn operators_only<B: MessageBody + 'static>(
    guard: impl ConsoleGuard<HttpRequest>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let admitted = admit_operator(&guard, &mut RequestView::new(request.request()));
    match admitted {
        Ok(_) => Ok(next.call(request).await?.map_into_left_body()),
        Err(reply) => Ok(request.into_response(response_from_reply(reply)).map_into_right_body()),
    }
}
