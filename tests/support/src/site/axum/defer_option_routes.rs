//! Routes with special settings of the DeferLayer.

use std::time::Duration;

use axum::{Router, routing::any};
use lockgate_axum::{DeferLayer, LockLayer, RateLimitLayer};

use super::{AppRoutes, handle_request, quota_per_minute};

fn shared_budget_layer() -> DeferLayer {
    DeferLayer::new().buffer_budget(4 << 20).body_read_timeout(Duration::from_secs(60))
}

pub(super) fn defer_option_routes() -> AppRoutes {
    let one = |path, defer: DeferLayer| {
        let lock = LockLayer::by_path_param("id");
        Router::new().route(path, any(handle_request)).layer(lock).layer(defer)
    };
    let shared = Router::new().route("/always-shared/{id}", any(handle_request));
    shared
        .layer(LockLayer::by_path_param("id").permits(2))
        .layer(DeferLayer::new().background())
        .merge(
            Router::new()
                .route("/always-unlocked/{id}", any(handle_request))
                .layer(DeferLayer::new().background()),
        )
        .merge(one("/waits/{id}", DeferLayer::new().wait_up_to(Duration::from_secs(15))))
        .merge(one("/async/{id}", DeferLayer::new().respond_async()))
        .merge(one("/always/{id}", DeferLayer::new().background().body_limit(16)))
        .merge(one("/worker-required/{id}", DeferLayer::new().require_worker()))
        .merge(one("/small-budget/{id}", DeferLayer::new().buffer_budget(2_048)))
        .merge(one("/shared-budget/{id}", shared_budget_layer()))
        .merge(one("/thin/{id}", DeferLayer::new().max_resource_bytes(400)))
        .merge(one("/queue-jobs/{id}", DeferLayer::new().max_queue_jobs(64)))
        .merge(one("/queue-bytes/{id}", DeferLayer::new().max_queue_bytes(64 * 400)))
        .merge(one("/puts/{id}", DeferLayer::new().methods(["PUT"])))
        .merge(one("/first/{id}", DeferLayer::new().coalesce()))
        .merge(one("/last/{id}", DeferLayer::new().supersede()))
        .merge(one("/delayed/{id}", DeferLayer::new().delay(Duration::from_secs(1))))
        .merge(one(
            "/brief-lived/{id}",
            DeferLayer::new().expires_after(Duration::from_millis(300)),
        ))
        .merge(one("/repeated/{id}", DeferLayer::new().retry_non_idempotent().max_attempts(2)))
        .merge(one("/remembered/{id}", DeferLayer::new().idempotent_direct()))
        .merge(one(
            "/remembered-again/{id}",
            DeferLayer::new().idempotent_direct().retry_non_idempotent(),
        ))
        .merge(one(
            "/remembered-one/{id}",
            DeferLayer::new().idempotent_direct().max_direct_runs(1),
        ))
        .merge(
            Router::new()
                .route("/remembered-briefly/{id}", any(handle_request))
                .layer(LockLayer::by_path_param("id").max_hold(Duration::from_secs(1)))
                .layer(DeferLayer::new().idempotent_direct()),
        )
        .merge(
            Router::new()
                .route("/remembered-several/{id}", any(handle_request))
                .layer(LockLayer::by_keys("id", |_| vec!["8".to_owned(), "7".to_owned()]))
                .layer(DeferLayer::new().idempotent_direct()),
        )
        .merge(
            Router::new()
                .route("/remembered-within/{id}", any(handle_request))
                .layer(
                    RateLimitLayer::by_header("x-api-key", quota_per_minute(1))
                        .policy_name("remembered"),
                )
                .layer(LockLayer::by_header("x-account"))
                .layer(LockLayer::by_path_param("id"))
                .layer(DeferLayer::new().idempotent_direct()),
        )
        .merge(
            Router::new()
                .route("/remembered-permits/{id}", any(handle_request))
                .layer(LockLayer::by_path_param("id").permits(2))
                .layer(DeferLayer::new().idempotent_direct()),
        )
}
