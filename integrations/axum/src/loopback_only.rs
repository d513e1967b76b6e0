//! `loopback_only`, the middleware of pages for this machine alone.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use lockgate::{
    driver::LoopbackGuard,
    middleware::{PartsView, response_from_reply},
};

use crate::axum_framework::AxumFramework;

/// Answers 403 to each request that did not come from this machine, for pages of its operators such
/// as `/metrics`. Requests through a proxy on this machine are refused too.
///
/// See the core's [`LoopbackGuard`]. The server has to provide the peer's address, as
/// [`serve`](crate::serve) does; without it, every request is refused. Dropping the future drops
/// the inner call.
///
/// ```
/// # use axum::{Router, middleware::from_fn, routing::get};
/// # use lockgate_axum::loopback_only;
/// let metrics = get(async || "lockgate_locks_held 0\n").layer(from_fn(loopback_only));
/// let app: Router = Router::new().route("/metrics", metrics);
/// # drop(app);
/// ```
pub async fn loopback_only(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let verdict = LoopbackGuard::check(&PartsView::<AxumFramework>::new(&mut parts));
    match verdict {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(reply) => response_from_reply::<Body>(reply).map(Body::new),
    }
}
