//! Routes behind an authentication whose user the deferred request carries as a snapshot.

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, header::AUTHORIZATION},
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use lockgate_axum::{DeferLayer, LockLayer};

use super::{super::RequestUser, AppRoutes, handle_request};

pub(super) fn snapshot_routes() -> AppRoutes {
    let deferred_route = |path, layer: DeferLayer| {
        let routes =
            Router::new().route(path, any(handle_request)).layer(LockLayer::by_path_param("id"));
        routes.layer(layer).layer(from_fn(authenticate))
    };
    let carried = || DeferLayer::new().carry_extension::<RequestUser>();
    let named = || DeferLayer::new().carry_identity(RequestUser::owner_id).status_path("/own-jobs");
    let named_or_key =
        DeferLayer::new().carry_identity(RequestUser::owner_id).keep_header("x-api-key");
    let named_or_key = named_or_key.coalesce().idempotent_direct();
    deferred_route("/carried/{id}", carried())
        .merge(deferred_route(
            "/for-user/{id}",
            DeferLayer::new().for_user::<RequestUser>().status_path("/own"),
        ))
        .merge(deferred_route(
            "/carried-by-all/{id}",
            carried().share_across_owners().coalesce().idempotent_direct(),
        ))
        .merge(deferred_route("/named/{id}", named().idempotent_direct()))
        .merge(deferred_route("/named-or-key/{id}", named_or_key))
        .merge(deferred_route("/carried-or-key/{id}", carried().keep_header("x-api-key")))
        .merge(deferred_route("/named-first/{id}", named().coalesce()))
        .merge(deferred_route("/named-last/{id}", named().supersede()))
}

/// Builds a layer that would merge requests of different users.
pub(super) fn build_unscoped_merge_layer() -> AppRoutes {
    let layer = DeferLayer::new().carry_extension::<RequestUser>().coalesce();
    Router::new().route("/carried/{id}", any(handle_request)).layer(layer)
}

/// Stores the user as an extension if the request has a token; a deferred run has none.
pub(super) async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION).map(HeaderValue::to_str);
    if let Some(Ok(token)) = token {
        let user = RequestUser(token.trim_start_matches("Bearer ").to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}
