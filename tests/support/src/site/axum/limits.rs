//! Routes with several policies, and limits that depend on the request or its response.

use std::time::Duration;

use axum::{Router, response::Response, routing::any};
use http::request::Parts;
use lockgate_axum::{CurrentRate, KeyPart, Policy, Quota, RateLimitLayer};

use super::{Routes, minute, work};

pub(super) fn limits() -> Routes {
    several().merge(by_request()).merge(settled()).merge(punished())
}

fn one(path: &str, layer: RateLimitLayer) -> Routes {
    Router::new().route(path, any(work)).layer(layer)
}

fn key(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::by_header("x-api-key", policy)
}

fn named(name: &str, quota: Quota) -> Policy {
    Policy::new(quota).with_name(name)
}

fn several() -> Routes {
    let alike =
        key(named("burst", minute(3).gcra())).and(key(named("sliding", minute(4).sliding())));
    let apart = RateLimitLayer::by_path_param("id", named("each", minute(2)))
        .and(RateLimitLayer::by_route(named("all", minute(3))));
    let group = RateLimitLayer::by_path_param("id", named("each", minute(2)))
        .and(key(named("tenant", minute(3))))
        .group_by(KeyPart::header("x-api-key"));
    let shadow = key(named("real", minute(3))).and(key(named("watched", minute(1)).shadow()));
    let twice = || key(named("twice", minute(3)));
    one("/limits/alike", alike)
        .merge(one("/limits/apart/{id}", apart))
        .merge(one("/limits/group/{id}", group))
        .merge(one("/limits/shadow", shadow))
        .merge(one("/limits/twice", twice()).layer(twice()))
        .merge(one("/limits/leased", key(named("leased", minute(20)).quota_lease(5))))
}

fn number(parts: &Parts, name: &str) -> Option<u64> {
    parts.headers.get(name)?.to_str().ok()?.parse().ok()
}

fn by_request() -> Routes {
    let plans = key(named("plans", minute(1))).quota_by(|parts| {
        let quota = number(parts, "x-plan").map_or(Quota::unlimited(), minute);
        async move { quota }
    });
    let cost = key(named("cost", minute(10))).cost_by(|parts| number(parts, "x-cost").unwrap_or(1));
    one("/limits/plans", plans)
        .merge(one("/limits/cost", cost))
        .merge(one("/limits/none", key(named("none", minute(0)))))
}

fn settled() -> Routes {
    let refund = key(named("refund", minute(2))).refund_on(|status| status >= 500);
    let handler = key(named("handler", minute(10))).handler_sets_cost();
    let paced = key(named("paced", minute(60).gcra())).handler_sets_cost();
    one("/limits/refund", refund)
        .merge(Router::new().route("/limits/handler", any(costly)).layer(handler))
        .merge(Router::new().route("/limits/paced", any(costly)).layer(paced))
}

/// What others have reset is heard of at once.
fn punished() -> Routes {
    let strict = named("strict", minute(2)).penalty(2, Duration::from_secs(300));
    let brief = Policy::new(Quota::requests(1).per(Duration::from_secs(1))).with_name("brief");
    one("/limits/strict", key(strict.cache_refusals_for(Duration::ZERO)))
        .merge(one("/limits/brief", key(brief.penalty(1, Duration::from_secs(3)))))
}

async fn costly(rate: CurrentRate, request: axum::extract::Request) -> Response {
    let (parts, _) = request.into_parts();
    if let Some(cost) = number(&parts, "x-cost") {
        let _ = rate.0.set_cost(cost);
    }
    Response::default()
}
