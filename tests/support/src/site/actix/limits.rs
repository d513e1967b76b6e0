//! Routes with several policies, and limits that depend on the request or its response.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse,
    web::{ServiceConfig, resource},
};
use lockgate_actix_web::{CurrentRate, KeyPart, Policy, Quota, RateLimitLayer};

use super::{minute, work};

pub(super) fn limits(config: &mut ServiceConfig) {
    several(config);
    by_request(config);
    settled(config);
    punished(config);
}

fn one(config: &mut ServiceConfig, path: &str, layer: RateLimitLayer) {
    config.service(resource(path).to(work).wrap(layer));
}

fn key(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::by_header("x-api-key", policy)
}

fn named(name: &str, quota: Quota) -> Policy {
    Policy::new(quota).with_name(name)
}

fn several(config: &mut ServiceConfig) {
    let alike =
        key(named("burst", minute(3).gcra())).and(key(named("sliding", minute(4).sliding())));
    let apart = RateLimitLayer::by_path_param("id", named("each", minute(2)))
        .and(RateLimitLayer::by_route(named("all", minute(3))));
    let group = RateLimitLayer::by_path_param("id", named("each", minute(2)))
        .and(key(named("tenant", minute(3))))
        .group_by(KeyPart::header("x-api-key"));
    let shadow = key(named("real", minute(3))).and(key(named("watched", minute(1)).shadow()));
    let twice = || key(named("twice", minute(3)));
    one(config, "/limits/alike", alike);
    one(config, "/limits/apart/{id}", apart);
    one(config, "/limits/group/{id}", group);
    one(config, "/limits/shadow", shadow);
    config.service(resource("/limits/twice").to(work).wrap(twice()).wrap(twice()));
    one(config, "/limits/leased", key(named("leased", minute(20)).quota_lease(5)));
}

fn number(request: &HttpRequest, name: &str) -> Option<u64> {
    request.headers().get(name)?.to_str().ok()?.parse().ok()
}

fn by_request(config: &mut ServiceConfig) {
    let plans = key(named("plans", minute(1))).quota_by(|request| {
        let quota = number(request, "x-plan").map_or(Quota::unlimited(), minute);
        async move { quota }
    });
    let cost =
        key(named("cost", minute(10))).cost_by(|request| number(request, "x-cost").unwrap_or(1));
    one(config, "/limits/plans", plans);
    one(config, "/limits/cost", cost);
    one(config, "/limits/none", key(named("none", minute(0))));
}

fn settled(config: &mut ServiceConfig) {
    let refund = key(named("refund", minute(2))).refund_on(|status| status >= 500);
    let handler = key(named("handler", minute(10))).handler_sets_cost();
    one(config, "/limits/refund", refund);
    let paced = key(named("paced", minute(60).gcra())).handler_sets_cost();
    config
        .service(resource("/limits/handler").to(costly).wrap(handler))
        .service(resource("/limits/paced").to(costly).wrap(paced));
}

/// What others have reset is heard of at once.
fn punished(config: &mut ServiceConfig) {
    let strict = named("strict", minute(2)).penalty(2, Duration::from_secs(300));
    let brief = Policy::new(Quota::requests(1).per(Duration::from_secs(1))).with_name("brief");
    one(config, "/limits/strict", key(strict.cache_refusals_for(Duration::ZERO)));
    one(config, "/limits/brief", key(brief.penalty(1, Duration::from_secs(3))));
}

async fn costly(rate: CurrentRate, request: HttpRequest) -> HttpResponse {
    if let Some(cost) = number(&request, "x-cost") {
        let _ = rate.0.set_cost(cost);
    }
    HttpResponse::Ok().finish()
}
