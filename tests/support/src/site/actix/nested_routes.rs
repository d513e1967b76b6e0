//! Routes inside prefixes with parameters.

use actix_web::{
    HttpResponse, Scope,
    web::{ServiceConfig, resource, scope},
};
use lockgate_actix_web::{DeferLayer, LockLayer, RateLimitLayer};

use super::{lock_option_routes::handle_with_locks, quota_per_minute};

pub(super) fn nested_routes(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let around =
        scope("/around-tenants/{id}").service(resource("/orders/{id}").to(handle_with_locks));
    let paid = async || HttpResponse::Ok().body("paid");
    let hosted = scope("/orders/{id}").service(resource("/pay").to(paid)).wrap(by_id());
    config
        .service(order_routes(scope("/tenants/{id}")))
        .service(order_routes(scope("/shops/{shop}")))
        .service(scope("/hosted/{id}").service(hosted))
        .service(around.wrap(by_id()));
}

fn order_routes(prefix: Scope) -> Scope {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path: &str, layer: LockLayer| resource(path).to(handle_with_locks).wrap(layer);
    let quota = RateLimitLayer::by_path_param("id", quota_per_minute(2)).policy_name("nested");
    prefix
        .service(one("/orders/{id}/pay", by_id()))
        .service(one("/orders/{id}/pay-number", LockLayer::by_path_param_as::<u64>("id")))
        .service(one("/orders/{id}/later", by_id()).wrap(DeferLayer::new()))
        .service(one("/orders/{id}/to/{to}", LockLayer::by_path_params(["id", "to"])))
        .service(one("/orders/{id}/of/{to}", LockLayer::by_path_param("to").and_path_param("id")))
        .service(one("/orders/{id}/other/{to}", LockLayer::by_path_param("to").named("id")))
        .service(resource("/orders/{id}/quota").to(handle_with_locks).wrap(quota))
}
