//! Routes with special keys and settings of the LockLayer.

use std::time::Duration;

use actix_web::{
    Error, HttpMessage as _, HttpRequest, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::header::HeaderValue,
    middleware::{Next, from_fn},
    web::{Data, Payload, ServiceConfig, resource},
};
use lockgate_actix_web::{BusyStatus, CurrentLocks, DeferLayer, LockLayer};

use super::{
    super::{AppState, acquire_reentrantly, delegation_secret, parse_accounts},
    build_response, describe_request, handle_request, user_header,
};

pub(super) fn lock_option_routes(config: &mut ServiceConfig, app: &AppState) {
    let by_id = || LockLayer::by_path_param("id");
    let mut one = |path: &str, layer: LockLayer| {
        config.service(resource(path).to(handle_request).wrap(layer));
    };
    let pause = Duration::from_millis(20);
    one("/methods/{id}", by_id().methods(["POST", "GET"]));
    one("/locked/{id}", by_id().busy_status(BusyStatus::Locked));
    one("/too-many/{id}", by_id().busy_status(BusyStatus::TooManyRequests).retry(2, pause));
    one("/unavailable/{id}", by_id().busy_status(BusyStatus::Unavailable));
    one("/again/{id}", by_id().retry(1_000, pause));
    one("/reject/{id}", by_id().wait(Duration::from_secs(15)).reject());
    let refund = resource("/locked-refund/{id}")
        .to(handle_request)
        .wrap(by_id().busy_status(BusyStatus::Locked))
        .wrap(DeferLayer::new());
    config.service(refund);
    lock_key_routes(config);
    reentrant_lock_routes(config, app);
}

fn lock_key_routes(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let by_accounts = || LockLayer::by_path_params(["from", "to"]).named("id");
    let mut one = |path: &str, layer: LockLayer| {
        config.service(resource(path).to(handle_with_locks).wrap(layer));
    };
    one("/stripes/{id}", by_id().stripes(1));
    one("/numbers/{id}", LockLayer::by_path_param_as::<u64>("id"));
    let both_numbers = LockLayer::by_path_params_as::<u64>(["from", "to"]).named("id");
    one("/numbers/{from}/{to}", both_numbers);
    let number_of = LockLayer::by_path_param("tenant").and_path_param_as::<u64>("id");
    one("/number-of/{tenant}/{id}", number_of);
    one("/payments/{order}", LockLayer::by_path_param("order").named("id"));
    one("/tenant/{id}", by_id().and_header("x-tenant"));
    one("/tenant/{tenant}/{id}", by_id().and_path_param("tenant"));
    one("/tenant-by/{id}", by_id().and_key("user", user_header));
    one("/transfer/{from}/{to}", by_accounts().wait(Duration::from_secs(15)));
    one(
        "/accounts",
        LockLayer::by_keys("account", |request: &HttpRequest| {
            parse_accounts(request.headers().get("x-accounts").map(HeaderValue::as_bytes))
        }),
    );
    one("/document/{id}", by_id().read_write());
    let later = resource("/transfer-later/{from}/{to}").to(handle_with_locks).wrap(by_accounts());
    let two = resource("/two/{id}").to(handle_with_locks).wrap(by_id().permits(2));
    config.service(later.wrap(DeferLayer::new())).service(two.wrap(DeferLayer::new()));
}

fn reentrant_lock_routes(config: &mut ServiceConfig, app: &AppState) {
    let by_id = || LockLayer::by_path_param("id");
    let by_account = || LockLayer::by_header("x-account").store(&app.store);
    let one = |path: &str, layer: LockLayer| resource(path).to(handle_with_locks).wrap(layer);
    let second = app.second_store.as_ref().unwrap_or(&app.store);
    let two_stores = one("/two-stores/{id}", by_id().store(second));
    config
        .service(one("/within/{id}", by_id()))
        .service(
            one("/within-rebuilt", by_account()).wrap(from_fn(clear_extensions)).wrap(by_account()),
        )
        .service(one("/upgrade/{id}", by_id()).wrap(by_id().permits(2)))
        .service(one("/fewer/{id}", by_id().permits(1)).wrap(by_id().permits(2)))
        .service(one("/more/{id}", by_id().permits(3)).wrap(by_id().permits(2)))
        .service(two_stores.wrap(by_id()).wrap(DeferLayer::new()))
        .service(one("/fence/{id}", by_id().fence_header("X-Fence")))
        .service(one("/called/{id}", by_id().trust_delegation(&delegation_secret())))
        .service(one("/within-refund/{id}", by_id()).wrap(DeferLayer::new()));
}

/// Clears the extensions, like a middleware that rebuilds the request.
async fn clear_extensions(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    request.extensions_mut().clear();
    next.call(request).await
}

/// Handles a request on routes with any number of parameters, and acquires its first lock again.
pub(super) async fn handle_with_locks(
    app: Data<AppState>,
    locks: Option<CurrentLocks>,
    request: HttpRequest,
    body: Payload,
) -> HttpResponse {
    let mut observed = describe_request(&app, &request);
    if let Some(CurrentLocks(locks)) = locks {
        acquire_reentrantly(&app, &locks, &mut observed).await;
    }
    build_response(app.handler.handle_request(observed, body).await)
}
