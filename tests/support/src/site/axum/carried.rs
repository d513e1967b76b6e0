//! A route whose authentication stands before what is deferred, and goes along as a snapshot.

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, header::AUTHORIZATION},
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use lockgate_axum::{DeferLayer, LockLayer};

use super::{super::User, Routes, work};

pub(super) fn carried() -> Routes {
    Router::new()
        .route("/carried/{id}", any(work))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().carry::<User>())
        .layer(from_fn(authenticate))
}

/// Who it is, if it is told; a run tells nothing.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION).map(HeaderValue::to_str);
    if let Some(Ok(token)) = token {
        let user = User(token.trim_start_matches("Bearer ").to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}
