//! Routes with special keys and settings of the LockLayer.

use std::time::Duration;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, request::Parts},
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use lockgate_axum::{BusyStatus, CurrentLocks, DeferLayer, LockLayer};

use super::{
    super::{AppState, acquire_reentrantly, delegation_secret, parse_accounts},
    AppRoutes, build_response, describe_request, handle_request, user_header,
};

pub(super) fn lock_option_routes(app: &AppState) -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(handle_request)).layer(layer);
    let pause = Duration::from_millis(20);
    one("/methods/{id}", by_id().methods(["POST", "GET"]))
        .merge(one("/locked/{id}", by_id().busy_status(BusyStatus::Locked)))
        .merge(one(
            "/too-many/{id}",
            by_id().busy_status(BusyStatus::TooManyRequests).retry(2, pause),
        ))
        .merge(one("/unavailable/{id}", by_id().busy_status(BusyStatus::Unavailable)))
        .merge(
            one("/locked-refund/{id}", by_id().busy_status(BusyStatus::Locked))
                .layer(DeferLayer::new()),
        )
        .merge(one("/again/{id}", by_id().retry(1_000, pause)))
        .merge(one("/reject/{id}", by_id().wait(Duration::from_secs(15)).reject()))
        .merge(lock_key_routes())
        .merge(reentrant_lock_routes(app))
}

fn lock_key_routes() -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let by_accounts = || LockLayer::by_path_params(["from", "to"]).named("id");
    let one =
        |path, layer: LockLayer| Router::new().route(path, any(handle_with_locks)).layer(layer);
    let both_numbers = LockLayer::by_path_params_as::<u64>(["from", "to"]).named("id");
    let number_of = LockLayer::by_path_param("tenant").and_path_param_as::<u64>("id");
    one("/stripes/{id}", by_id().stripes(1))
        .merge(one("/numbers/{id}", LockLayer::by_path_param_as::<u64>("id")))
        .merge(one("/numbers/{from}/{to}", both_numbers))
        .merge(one("/number-of/{tenant}/{id}", number_of))
        .merge(one("/payments/{order}", LockLayer::by_path_param("order").named("id")))
        .merge(one("/tenant/{id}", by_id().and_header("x-tenant")))
        .merge(one("/tenant/{tenant}/{id}", by_id().and_path_param("tenant")))
        .merge(one("/tenant-by/{id}", by_id().and_key("user", user_header)))
        .merge(one("/transfer/{from}/{to}", by_accounts().wait(Duration::from_secs(15))))
        .merge(one("/transfer-later/{from}/{to}", by_accounts()).layer(DeferLayer::new()))
        .merge(one(
            "/accounts",
            LockLayer::by_keys("account", |parts: &Parts| {
                parse_accounts(parts.headers.get("x-accounts").map(HeaderValue::as_bytes))
            }),
        ))
        .merge(one("/document/{id}", by_id().read_write()))
        .merge(one("/two/{id}", by_id().permits(2)).layer(DeferLayer::new()))
}

fn reentrant_lock_routes(app: &AppState) -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let by_account = || LockLayer::by_header("x-account").store(&app.store);
    let one =
        |path, layer: LockLayer| Router::new().route(path, any(handle_with_locks)).layer(layer);
    one("/within/{id}", by_id())
        .merge(
            one("/within-rebuilt", by_account())
                .layer(from_fn(clear_extensions))
                .layer(by_account()),
        )
        .merge(one("/upgrade/{id}", by_id()).layer(by_id().permits(2)))
        .merge(one("/fewer/{id}", by_id().permits(1)).layer(by_id().permits(2)))
        .merge(one("/more/{id}", by_id().permits(3)).layer(by_id().permits(2)))
        .merge(
            one("/two-stores/{id}", by_id().store(app.second_store.as_ref().unwrap_or(&app.store)))
                .layer(by_id())
                .layer(DeferLayer::new()),
        )
        .merge(one("/fence/{id}", by_id().fence_header("X-Fence")))
        .merge(one("/called/{id}", by_id().trust_delegation(&delegation_secret())))
        .merge(one("/within-refund/{id}", by_id()).layer(DeferLayer::new()))
}

/// Clears the extensions, like a middleware that rebuilds the request.
async fn clear_extensions(mut request: Request, next: Next) -> Response {
    request.extensions_mut().clear();
    next.run(request).await
}

/// Handles a request on routes with any number of parameters, and acquires its first lock again.
pub(super) async fn handle_with_locks(
    State(app): State<AppState>,
    locks: Option<CurrentLocks>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let mut observed = describe_request(&app, &parts);
    if let Some(CurrentLocks(locks)) = locks {
        acquire_reentrantly(&app, &locks, &mut observed).await;
    }
    build_response(app.handler.handle_request(observed, body.into_data_stream()).await)
}
