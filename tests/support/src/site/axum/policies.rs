//! Routes whose locks are taken in ways of their own.

use std::time::Duration;

use axum::{Router, routing::any};
use lockgate_axum::{BusyStatus, DeferLayer, LockLayer};

use super::{Routes, work};

pub(super) fn policies() -> Routes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(work)).layer(layer);
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
}
