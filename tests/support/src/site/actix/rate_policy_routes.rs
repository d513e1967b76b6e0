//! Routes with several policies, and limits that depend on the request or its response.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse,
    web::{ServiceConfig, resource},
};
use lockgate_actix_web::{CurrentRate, KeyPart, Policy, Quota, RateLimitLayer};

use super::{handle_request, quota_per_minute};

pub(super) fn rate_policy_routes(config: &mut ServiceConfig) {
    multi_policy_routes(config);
    request_based_routes(config);
    response_based_routes(config);
    penalty_routes(config);
}

fn add_rate_limited_route(config: &mut ServiceConfig, path: &str, layer: RateLimitLayer) {
    config.service(resource(path).to(handle_request).wrap(layer));
}

fn by_api_key(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::by_header("x-api-key", policy)
}

fn named_policy(name: &str, quota: Quota) -> Policy {
    Policy::new(quota).with_name(name)
}

fn multi_policy_routes(config: &mut ServiceConfig) {
    let alike = by_api_key(named_policy("burst", quota_per_minute(3).gcra()))
        .and(by_api_key(named_policy("sliding", quota_per_minute(4).sliding())));
    let apart = RateLimitLayer::by_path_param("id", named_policy("each", quota_per_minute(2)))
        .and(RateLimitLayer::by_route(named_policy("all", quota_per_minute(3))));
    let group = RateLimitLayer::by_path_param("id", named_policy("each", quota_per_minute(2)))
        .and(by_api_key(named_policy("tenant", quota_per_minute(3))))
        .group_by(KeyPart::header("x-api-key"));
    let shadow = by_api_key(named_policy("real", quota_per_minute(3)))
        .and(by_api_key(named_policy("watched", quota_per_minute(1)).shadow()));
    let twice = || by_api_key(named_policy("twice", quota_per_minute(3)));
    add_rate_limited_route(config, "/limits/alike", alike);
    add_rate_limited_route(config, "/limits/apart/{id}", apart);
    add_rate_limited_route(config, "/limits/group/{id}", group);
    add_rate_limited_route(config, "/limits/shadow", shadow);
    config.service(resource("/limits/twice").to(handle_request).wrap(twice()).wrap(twice()));
    add_rate_limited_route(
        config,
        "/limits/leased",
        by_api_key(named_policy("leased", quota_per_minute(20)).quota_lease(5)),
    );
}

fn parse_header_number(request: &HttpRequest, name: &str) -> Option<u64> {
    request.headers().get(name)?.to_str().ok()?.parse().ok()
}

fn request_based_routes(config: &mut ServiceConfig) {
    let plans = by_api_key(named_policy("plans", quota_per_minute(1))).quota_by(|request| {
        let quota =
            parse_header_number(request, "x-plan").map_or(Quota::unlimited(), quota_per_minute);
        async move { quota }
    });
    let cost = by_api_key(named_policy("cost", quota_per_minute(10)))
        .cost_by(|request| parse_header_number(request, "x-cost").unwrap_or(1));
    add_rate_limited_route(config, "/limits/plans", plans);
    add_rate_limited_route(config, "/limits/cost", cost);
    add_rate_limited_route(
        config,
        "/limits/none",
        by_api_key(named_policy("none", quota_per_minute(0))),
    );
}

fn response_based_routes(config: &mut ServiceConfig) {
    let refund =
        by_api_key(named_policy("refund", quota_per_minute(2))).refund_on(|status| status >= 500);
    let handler = by_api_key(named_policy("handler", quota_per_minute(10))).handler_sets_cost();
    add_rate_limited_route(config, "/limits/refund", refund);
    let paced = by_api_key(named_policy("paced", quota_per_minute(60).gcra())).handler_sets_cost();
    config
        .service(resource("/limits/handler").to(charge_header_cost).wrap(handler))
        .service(resource("/limits/paced").to(charge_header_cost).wrap(paced));
}

/// No refusal cache delays the effect of a reset by another process.
fn penalty_routes(config: &mut ServiceConfig) {
    let strict = named_policy("strict", quota_per_minute(2)).penalty(2, Duration::from_secs(300));
    let brief = Policy::new(Quota::requests(1).per(Duration::from_secs(1))).with_name("brief");
    add_rate_limited_route(
        config,
        "/limits/strict",
        by_api_key(strict.cache_refusals_for(Duration::ZERO)),
    );
    add_rate_limited_route(
        config,
        "/limits/brief",
        by_api_key(brief.penalty(1, Duration::from_secs(3))),
    );
}

async fn charge_header_cost(rate: CurrentRate, request: HttpRequest) -> HttpResponse {
    if let Some(cost) = parse_header_number(&request, "x-cost") {
        let _ = rate.0.set_cost(cost);
    }
    HttpResponse::Ok().finish()
}
