//! Routes with special ends of their locks.

use std::time::Duration;

use actix_web::web::{ServiceConfig, resource};
use lockgate_actix_web::{DeferLayer, HoldUntil, LockLayer, OnLoss, RateLimitLayer};

use super::{handle_request, quota_per_minute};

pub(super) fn lock_hold_routes(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let brief = || by_id().max_hold(Duration::from_secs(3));
    let whole = || by_id().all_methods().hold_until(HoldUntil::BodyEnd);
    let brief_whole = || brief().hold_until(HoldUntil::BodyEnd);
    let slow = || by_id().body_read_timeout(Duration::from_millis(300));
    let mut one = |path: &str, layer: LockLayer| {
        config.service(resource(path).to(handle_request).wrap(layer));
    };
    one("/background/{id}", by_id().release_in_background());
    one("/whole/{id}", whole());
    one("/brief-whole/{id}", brief_whole());
    one("/brief-whole-finish/{id}", brief_whole().on_loss(OnLoss::Finish));
    one("/slow/{id}", slow());
    one("/slow-whole/{id}", slow().hold_until(HoldUntil::BodyEnd));
    one("/brief/{id}", brief());
    one("/finish/{id}", brief().on_loss(OnLoss::Finish));
    one("/finish-late/{id}", by_id().on_loss(OnLoss::Finish));
    one("/replace/{id}", brief().on_loss(OnLoss::Replace));
    let layered = resource("/layered/{id}")
        .to(handle_request)
        .wrap(brief())
        .wrap(brief().on_loss(OnLoss::Finish))
        .wrap(RateLimitLayer::by_ip(quota_per_minute(5)).policy_name("layered"));
    let refund =
        resource("/brief-refund/{id}").to(handle_request).wrap(brief()).wrap(DeferLayer::new());
    let twice = resource("/whole-twice/{id}").to(handle_request).wrap(by_id()).wrap(whole());
    let whole_refund =
        resource("/whole-refund/{id}").to(handle_request).wrap(whole()).wrap(DeferLayer::new());
    let slow_twice = resource("/slow-twice/{id}").to(handle_request).wrap(by_id()).wrap(slow());
    let slow_refund =
        resource("/slow-refund/{id}").to(handle_request).wrap(slow()).wrap(DeferLayer::new());
    let inverted =
        resource("/inverted-whole/{id}").to(handle_request).wrap(DeferLayer::new()).wrap(whole());
    let between =
        resource("/between-locks/{id}").to(handle_request).wrap(by_id()).wrap(DeferLayer::new());
    config.service(inverted).service(between.wrap(by_id()));
    config.service(slow_twice).service(slow_refund);
    config.service(layered).service(refund).service(twice).service(whole_refund);
}
