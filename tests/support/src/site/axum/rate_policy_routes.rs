//! Routes with several policies, and limits that depend on the request or its response.

use std::time::Duration;

use axum::{Router, response::Response, routing::any};
use http::request::Parts;
use lockgate_axum::{CurrentRate, KeyPart, Policy, Quota, RateLimitLayer};

use super::{AppRoutes, handle_request, quota_per_minute};

pub(super) fn rate_policy_routes() -> AppRoutes {
    multi_policy_routes()
        .merge(request_based_routes())
        .merge(response_based_routes())
        .merge(penalty_routes())
}

fn rate_limited_route(path: &str, layer: RateLimitLayer) -> AppRoutes {
    Router::new().route(path, any(handle_request)).layer(layer)
}

fn by_api_key(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::by_header("x-api-key", policy)
}

fn named_policy(name: &str, quota: Quota) -> Policy {
    Policy::new(quota).with_name(name)
}

fn multi_policy_routes() -> AppRoutes {
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
    rate_limited_route("/limits/alike", alike)
        .merge(rate_limited_route("/limits/apart/{id}", apart))
        .merge(rate_limited_route("/limits/group/{id}", group))
        .merge(rate_limited_route("/limits/shadow", shadow))
        .merge(rate_limited_route("/limits/twice", twice()).layer(twice()))
        .merge(rate_limited_route(
            "/limits/leased",
            by_api_key(named_policy("leased", quota_per_minute(20)).quota_lease(5)),
        ))
}

fn parse_header_number(parts: &Parts, name: &str) -> Option<u64> {
    parts.headers.get(name)?.to_str().ok()?.parse().ok()
}

fn request_based_routes() -> AppRoutes {
    let plans = by_api_key(named_policy("plans", quota_per_minute(1))).quota_by(|parts| {
        let quota =
            parse_header_number(parts, "x-plan").map_or(Quota::unlimited(), quota_per_minute);
        async move { quota }
    });
    let cost = by_api_key(named_policy("cost", quota_per_minute(10)))
        .cost_by(|parts| parse_header_number(parts, "x-cost").unwrap_or(1));
    rate_limited_route("/limits/plans", plans)
        .merge(rate_limited_route("/limits/cost", cost))
        .merge(rate_limited_route(
            "/limits/none",
            by_api_key(named_policy("none", quota_per_minute(0))),
        ))
}

fn response_based_routes() -> AppRoutes {
    let refund =
        by_api_key(named_policy("refund", quota_per_minute(2))).refund_on(|status| status >= 500);
    let handler = by_api_key(named_policy("handler", quota_per_minute(10))).handler_sets_cost();
    let paced = by_api_key(named_policy("paced", quota_per_minute(60).gcra())).handler_sets_cost();
    rate_limited_route("/limits/refund", refund)
        .merge(Router::new().route("/limits/handler", any(charge_header_cost)).layer(handler))
        .merge(Router::new().route("/limits/paced", any(charge_header_cost)).layer(paced))
}

/// No refusal cache delays the effect of a reset by another process.
fn penalty_routes() -> AppRoutes {
    let strict = named_policy("strict", quota_per_minute(2)).penalty(2, Duration::from_secs(300));
    let brief = Policy::new(Quota::requests(1).per(Duration::from_secs(1))).with_name("brief");
    rate_limited_route("/limits/strict", by_api_key(strict.cache_refusals_for(Duration::ZERO)))
        .merge(rate_limited_route(
            "/limits/brief",
            by_api_key(brief.penalty(1, Duration::from_secs(3))),
        ))
}

async fn charge_header_cost(rate: CurrentRate, request: axum::extract::Request) -> Response {
    let (parts, _) = request.into_parts();
    if let Some(cost) = parse_header_number(&parts, "x-cost") {
        let _ = rate.0.set_cost(cost);
    }
    Response::default()
}
