//! Routes with special settings of the DeferLayer.

use std::time::Duration;

use actix_web::web::{ServiceConfig, resource};
use lockgate_actix_web::{DeferLayer, LockLayer, RateLimitLayer};

use super::{handle_request, quota_per_minute};

pub(super) fn defer_option_routes(config: &mut ServiceConfig) {
    let mut one = |path: &str, defer: DeferLayer| {
        let lock = LockLayer::by_path_param("id");
        config.service(resource(path).to(handle_request).wrap(lock).wrap(defer));
    };
    one("/waits/{id}", DeferLayer::new().wait_up_to(Duration::from_secs(15)));
    one("/async/{id}", DeferLayer::new().respond_async());
    one("/always/{id}", DeferLayer::new().background().body_limit(16));
    one("/worker-required/{id}", DeferLayer::new().require_worker());
    one("/small-budget/{id}", DeferLayer::new().buffer_budget(2_048));
    let shared_budget = DeferLayer::new().buffer_budget(4 << 20);
    one("/shared-budget/{id}", shared_budget.body_read_timeout(Duration::from_secs(60)));
    one("/thin/{id}", DeferLayer::new().max_resource_bytes(400));
    one("/queue-jobs/{id}", DeferLayer::new().max_queue_jobs(64));
    one("/queue-bytes/{id}", DeferLayer::new().max_queue_bytes(64 * 400));
    one("/puts/{id}", DeferLayer::new().methods(["PUT"]));
    one("/first/{id}", DeferLayer::new().coalesce());
    one("/last/{id}", DeferLayer::new().supersede());
    one("/delayed/{id}", DeferLayer::new().delay(Duration::from_secs(1)));
    one("/brief-lived/{id}", DeferLayer::new().expires_after(Duration::from_millis(300)));
    one("/repeated/{id}", DeferLayer::new().retry_non_idempotent().max_attempts(2));
    one("/remembered/{id}", DeferLayer::new().idempotent_direct());
    one("/remembered-again/{id}", DeferLayer::new().idempotent_direct().retry_non_idempotent());
    one("/remembered-one/{id}", DeferLayer::new().idempotent_direct().max_direct_runs(1));
    let briefly = resource("/remembered-briefly/{id}")
        .to(handle_request)
        .wrap(LockLayer::by_path_param("id").max_hold(Duration::from_secs(1)))
        .wrap(DeferLayer::new().idempotent_direct());
    config.service(briefly);
    let several = resource("/remembered-several/{id}")
        .to(handle_request)
        .wrap(LockLayer::by_keys("id", |_| vec!["8".to_owned(), "7".to_owned()]))
        .wrap(DeferLayer::new().idempotent_direct());
    config.service(several);
    let within = resource("/remembered-within/{id}")
        .to(handle_request)
        .wrap(RateLimitLayer::by_header("x-api-key", quota_per_minute(1)).policy_name("remembered"))
        .wrap(LockLayer::by_header("x-account"))
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new().idempotent_direct());
    config.service(within);
    let permits = resource("/remembered-permits/{id}")
        .to(handle_request)
        .wrap(LockLayer::by_path_param("id").permits(2))
        .wrap(DeferLayer::new().idempotent_direct());
    config.service(permits);
    let shared = resource("/always-shared/{id}")
        .to(handle_request)
        .wrap(LockLayer::by_path_param("id").permits(2))
        .wrap(DeferLayer::new().background());
    config.service(shared);
    let unlocked = resource("/always-unlocked/{id}").to(handle_request);
    config.service(unlocked.wrap(DeferLayer::new().background()));
}
