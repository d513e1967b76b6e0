//! axum servers.

use std::net::TcpListener;

use axum::{Router, middleware, routing::get, serve::ListenerExt as _};
use lockgate_axum::{Policy, Quota, RateLimitLayer};
use tokio::runtime::Runtime;

use super::{
    KEY_HEADER, LimiterKind, LimiterServerPlan, QUOTA_LEASE_SIZE, QUOTA_WINDOW,
    hand_written_limiter::{self, HandWrittenLimiter},
    handler,
};
use crate::{
    bench_result::BenchResult,
    lock_contender::{connect_multiplexed, connect_store},
    lock_worker::worker_runtime,
};

pub(super) fn serve(plan: &LimiterServerPlan, listener: TcpListener) -> BenchResult<Runtime> {
    let runtime = worker_runtime()?;
    let app = runtime.block_on(build_app(plan))?;
    listener.set_nonblocking(true)?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    // A server that answers small requests sets this option.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    runtime.spawn(async move { axum::serve(listener, app).await });
    Ok(runtime)
}

async fn build_app(plan: &LimiterServerPlan) -> BenchResult<Router> {
    let routes = Router::new().route("/limited", get(handler));
    let LimiterServerPlan { kind, redis_port, limit } = *plan;
    Ok(match kind {
        LimiterKind::LayerAxum | LimiterKind::LeasedAxum => {
            let policy = Policy::new(Quota::requests(limit.into()).per(QUOTA_WINDOW));
            let is_leased = kind == LimiterKind::LeasedAxum;
            let policy = if is_leased { policy.quota_lease(QUOTA_LEASE_SIZE) } else { policy };
            let layer = RateLimitLayer::by_header(KEY_HEADER, policy);
            // The layer has the store itself, as in every peer. An `Extension` would be a second
            // layer.
            routes.layer(layer.store(&connect_store(redis_port).await?))
        }
        LimiterKind::HandWritten => {
            let limiter = HandWrittenLimiter::connect(redis_port, limit).await?;
            routes.layer(middleware::from_fn_with_state(
                limiter,
                hand_written_limiter::limit_middleware,
            ))
        }
        LimiterKind::Ping => {
            let connection = connect_multiplexed(redis_port).await?;
            routes.layer(middleware::from_fn_with_state(
                connection,
                hand_written_limiter::ping_middleware,
            ))
        }
        LimiterKind::TowerRateLimiter => peers::with_tower_rate_limiter(routes, plan).await?,
        LimiterKind::TowerGovernor => peers::with_tower_governor(routes, plan)?,
        _ => routes,
    })
}

#[cfg(not(feature = "peers"))]
mod peers {
    use axum::Router;

    use super::{super::missing_peer, LimiterServerPlan};
    use crate::bench_result::BenchResult;

    pub(super) async fn with_tower_rate_limiter(
        _: Router,
        plan: &LimiterServerPlan,
    ) -> BenchResult<Router> {
        missing_peer(plan.kind)
    }

    pub(super) fn with_tower_governor(_: Router, plan: &LimiterServerPlan) -> BenchResult<Router> {
        missing_peer(plan.kind)
    }
}

#[cfg(feature = "peers")]
mod peers {
    use std::sync::Arc;

    use axum::{Router, http::Request};
    use tower_governor::{
        GovernorError, GovernorLayer, governor::GovernorConfigBuilder,
        key_extractor::KeyExtractor as GovernorKey,
    };
    use tower_rate_limiter::{KeyExtractor, RateLimitError, RateLimitLayer, RedisStore};

    use super::{super::QUOTA_WINDOW, KEY_HEADER, LimiterKind, LimiterServerPlan};
    use crate::{bench_result::BenchResult, lock_contender::connect_multiplexed};

    /// Key extractor of both peers.
    #[derive(Clone)]
    struct HeaderKeyExtractor;

    fn request_key<T>(request: &Request<T>) -> Option<String> {
        Some(request.headers().get(KEY_HEADER)?.to_str().ok()?.to_owned())
    }

    impl KeyExtractor for HeaderKeyExtractor {
        type Key = String;

        fn extract<T>(&self, request: &Request<T>) -> Result<String, RateLimitError> {
            request_key(request)
                .ok_or_else(|| RateLimitError::Key("no key".into(), KEY_HEADER.into()))
        }
    }

    impl GovernorKey for HeaderKeyExtractor {
        type Key = String;

        fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
            request_key(request).ok_or(GovernorError::UnableToExtractKey)
        }
    }

    pub(super) async fn with_tower_rate_limiter(
        routes: Router,
        plan: &LimiterServerPlan,
    ) -> BenchResult<Router> {
        let layer = RateLimitLayer::builder(HeaderKeyExtractor)
            .limit(plan.limit.into())
            .window(QUOTA_WINDOW)
            .with_store(RedisStore::new(connect_multiplexed(plan.redis_port).await?))
            .build()?;
        Ok(routes.layer(layer))
    }

    /// Its quota is a burst that refills evenly over the window.
    pub(super) fn with_tower_governor(
        routes: Router,
        plan: &LimiterServerPlan,
    ) -> BenchResult<Router> {
        let config = GovernorConfigBuilder::default()
            .period(QUOTA_WINDOW / plan.limit)
            .burst_size(plan.limit)
            .key_extractor(HeaderKeyExtractor)
            .use_headers()
            .finish()
            .ok_or("tower_governor rejects the quota")?;
        Ok(routes.layer(GovernorLayer::new(Arc::new(config))))
    }
}
