//! Routes behind an authentication whose user the deferred request carries as a snapshot.

use actix_web::{
    Error, HttpMessage as _, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse, Transform, fn_service},
    http::header::{AUTHORIZATION, HeaderValue},
    middleware::{Next, from_fn},
    web::{ServiceConfig, resource},
};
use lockgate_actix_web::{DeferLayer, LockLayer};

use super::{super::RequestUser, handle_request};

pub(super) fn snapshot_routes(config: &mut ServiceConfig) {
    let mut add_route = |path: &str, layer: DeferLayer| {
        let resource = resource(path).to(handle_request).wrap(LockLayer::by_path_param("id"));
        config.service(resource.wrap(layer).wrap(from_fn(authenticate)));
    };
    let carried = || DeferLayer::new().carry_extension::<RequestUser>();
    let named = || DeferLayer::new().carry_identity(RequestUser::owner_id).status_path("/own-jobs");
    add_route("/carried/{id}", carried());
    add_route("/for-user/{id}", DeferLayer::new().for_user::<RequestUser>().status_path("/own"));
    add_route(
        "/carried-by-all/{id}",
        carried().share_across_owners().coalesce().idempotent_direct(),
    );
    add_route("/named/{id}", named().idempotent_direct());
    let named_or_key =
        DeferLayer::new().carry_identity(RequestUser::owner_id).keep_header("x-api-key");
    add_route("/named-or-key/{id}", named_or_key.coalesce().idempotent_direct());
    add_route("/carried-or-key/{id}", carried().keep_header("x-api-key"));
    add_route("/named-first/{id}", named().coalesce());
    add_route("/named-last/{id}", named().supersede());
}

/// Builds a layer that would merge requests of different users.
pub(super) fn build_unscoped_merge_layer() {
    let service = fn_service(async |request: ServiceRequest| {
        Ok::<_, Error>(request.into_response(HttpResponse::Ok().finish()))
    });
    let layer = DeferLayer::new().carry_extension::<RequestUser>().coalesce();
    drop(Transform::<_, ServiceRequest>::new_transform(&layer, service));
}

/// Stores the user as an extension if the request has a token; a deferred run has none.
pub(super) async fn authenticate(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let token = request.headers().get(AUTHORIZATION).map(HeaderValue::to_str);
    if let Some(Ok(token)) = token {
        let user = RequestUser(token.trim_start_matches("Bearer ").to_owned());
        request.extensions_mut().insert(user);
    }
    next.call(request).await
}
