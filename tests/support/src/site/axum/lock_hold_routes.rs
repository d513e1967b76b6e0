//! Routes with special ends of their locks.

use std::time::Duration;

use axum::{Router, routing::any};
use lockgate_axum::{DeferLayer, HoldUntil, LockLayer, OnLoss, RateLimitLayer};

use super::{AppRoutes, handle_request, quota_per_minute};

pub(super) fn lock_hold_routes() -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let brief = || by_id().max_hold(Duration::from_secs(3));
    let whole = || by_id().all_methods().hold_until(HoldUntil::BodyEnd);
    let brief_whole = || brief().hold_until(HoldUntil::BodyEnd);
    let slow = || by_id().body_read_timeout(Duration::from_millis(300));
    let one = |path, layer: LockLayer| Router::new().route(path, any(handle_request)).layer(layer);
    one("/background/{id}", by_id().release_in_background())
        .merge(one("/whole/{id}", whole()))
        .merge(one("/whole-twice/{id}", by_id()).layer(whole()))
        .merge(one("/whole-refund/{id}", whole()).layer(DeferLayer::new()))
        .merge(one("/brief-whole/{id}", brief_whole()))
        .merge(one("/brief-whole-finish/{id}", brief_whole().on_loss(OnLoss::Finish)))
        .merge(one("/slow/{id}", slow()))
        .merge(one("/slow-whole/{id}", slow().hold_until(HoldUntil::BodyEnd)))
        .merge(one("/slow-twice/{id}", by_id()).layer(slow()))
        .merge(one("/slow-refund/{id}", slow()).layer(DeferLayer::new()))
        .merge(
            Router::new()
                .route("/inverted-whole/{id}", any(handle_request))
                .layer(DeferLayer::new())
                .layer(whole()),
        )
        .merge(one("/between-locks/{id}", by_id()).layer(DeferLayer::new()).layer(by_id()))
        .merge(one("/brief/{id}", brief()))
        .merge(one("/finish/{id}", brief().on_loss(OnLoss::Finish)))
        .merge(one("/finish-late/{id}", by_id().on_loss(OnLoss::Finish)))
        .merge(one("/replace/{id}", brief().on_loss(OnLoss::Replace)))
        .merge(
            one("/layered/{id}", brief())
                .layer(brief().on_loss(OnLoss::Finish))
                .layer(RateLimitLayer::by_ip(quota_per_minute(5)).policy_name("layered")),
        )
        .merge(one("/brief-refund/{id}", brief()).layer(DeferLayer::new()))
}
