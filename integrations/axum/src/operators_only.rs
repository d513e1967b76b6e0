//! `operators_only`, the middleware of other pages for operators.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use http::request::Parts;
use lockgate::{
    console::{ConsoleGuard, admit_operator},
    middleware::{PartsView, response_from_reply},
};

use crate::axum_framework::AxumFramework;

/// Answers 401 or 403 to each request that the guard refuses, for pages of operators beside the
/// [`console`](crate::console()), such as `/metrics`.
///
/// The guard is one of the console's. [`BasicAuth`](crate::BasicAuth) is shared in an `Arc`. For
/// the machine itself, [`loopback_only`](crate::loopback_only) needs no feature. Dropping the
/// future drops the inner call.
///
/// ```
/// # use axum::{Router, body::Body, http::{Request, request::Parts}};
/// # use axum::{middleware::from_fn, routing::get};
/// # use lockgate_axum::{admin::{Operator, Permission}, operators_only};
/// # use tower::ServiceExt as _;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Behind a proxy that authenticates its users and is the only one that can connect.
/// let staff = |request: &Parts| {
///     let name = request.headers.get("x-authenticated-user")?.to_str().ok()?;
///     Some(Operator::new(name, Permission::Look))
/// };
/// let metrics = get(async || "lockgate_locks_held 0\n")
///     .layer(from_fn(move |request, next| operators_only(staff, request, next)));
/// let app: Router = Router::new().route("/metrics", metrics);
///
/// let request = Request::get("/metrics").body(Body::empty())?;
/// assert_eq!(app.clone().oneshot(request).await?.status(), 403);
/// let request = Request::get("/metrics").header("x-authenticated-user", "prometheus");
/// assert_eq!(app.oneshot(request.body(Body::empty())?).await?.status(), 200);
/// # Ok(()) }
/// ```
pub async fn operators_only(
    guard: impl ConsoleGuard<Parts>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let admitted = admit_operator(&guard, &mut PartsView::<AxumFramework>::new(&mut parts));
    match admitted {
        Ok(_) => next.run(Request::from_parts(parts, body)).await,
        Err(reply) => response_from_reply::<Body>(reply).map(Body::new),
    }
}
