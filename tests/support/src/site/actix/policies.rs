//! Routes whose locks are taken in ways of their own.

use std::time::Duration;

use actix_web::web::{ServiceConfig, resource};
use lockgate_actix_web::{BusyStatus, DeferLayer, LockLayer};

use super::work;

pub(super) fn policies(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let mut one = |path: &str, layer: LockLayer| {
        config.service(resource(path).to(work).wrap(layer));
    };
    let pause = Duration::from_millis(20);
    one("/methods/{id}", by_id().methods(["POST", "GET"]));
    one("/locked/{id}", by_id().busy_status(BusyStatus::Locked));
    one("/too-many/{id}", by_id().busy_status(BusyStatus::TooManyRequests).retry(2, pause));
    one("/unavailable/{id}", by_id().busy_status(BusyStatus::Unavailable));
    one("/again/{id}", by_id().retry(1_000, pause));
    one("/reject/{id}", by_id().wait(Duration::from_secs(15)).reject());
    let refund = resource("/locked-refund/{id}")
        .to(work)
        .wrap(by_id().busy_status(BusyStatus::Locked))
        .wrap(DeferLayer::new());
    config.service(refund);
}
