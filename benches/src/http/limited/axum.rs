//! On axum.

use std::net::TcpListener;

use axum::{Router, middleware, routing::get, serve::ListenerExt as _};
use lockgate_axum::{Policy, Quota, RateLimitLayer};
use tokio::runtime::Runtime;

use super::{
    KEY, Kind, LEASE, Plan, WINDOW,
    by_hand::{self, ByHand},
    handler,
};
use crate::{
    contestant::{connect_store, multiplexed},
    outcome::Outcome,
    worker::runtime,
};

pub(super) fn serve(plan: &Plan, listener: TcpListener) -> Outcome<Runtime> {
    let runtime = runtime()?;
    let app = runtime.block_on(app(plan))?;
    listener.set_nonblocking(true)?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    // The option that every server sets which answers small requests.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    runtime.spawn(async move { axum::serve(listener, app).await });
    Ok(runtime)
}

async fn app(plan: &Plan) -> Outcome<Router> {
    let routes = Router::new().route("/limited", get(handler));
    let Plan { kind, redis, limit } = *plan;
    Ok(match kind {
        Kind::LayerAxum | Kind::LeasedAxum => {
            let policy = Policy::new(Quota::requests(limit.into()).per(WINDOW));
            let leased = kind == Kind::LeasedAxum;
            let policy = if leased { policy.lease(LEASE) } else { policy };
            let layer = RateLimitLayer::by_header(KEY, policy);
            // In the layer, as every peer has its own: through an `Extension` it would be a second layer.
            routes.layer(layer.store(&connect_store(redis).await?))
        }
        Kind::ByHand => {
            let limiter = ByHand::connect(redis, limit).await?;
            routes.layer(middleware::from_fn_with_state(limiter, by_hand::limit))
        }
        Kind::Ping => {
            let connection = multiplexed(redis).await?;
            routes.layer(middleware::from_fn_with_state(connection, by_hand::ping))
        }
        Kind::TowerRateLimiter => peers::tower_rate_limiter(routes, plan).await?,
        Kind::TowerGovernor => peers::tower_governor(routes, plan)?,
        _ => routes,
    })
}

#[cfg(not(feature = "peers"))]
mod peers {
    use axum::Router;

    use super::{super::absent, Plan};
    use crate::outcome::Outcome;

    pub(super) async fn tower_rate_limiter(_: Router, plan: &Plan) -> Outcome<Router> {
        absent(plan.kind)
    }

    pub(super) fn tower_governor(_: Router, plan: &Plan) -> Outcome<Router> {
        absent(plan.kind)
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

    use super::{super::WINDOW, KEY, Kind, Plan};
    use crate::{contestant::multiplexed, outcome::Outcome};

    /// The key of both.
    #[derive(Clone)]
    struct Field;

    fn key<T>(request: &Request<T>) -> Option<String> {
        Some(request.headers().get(KEY)?.to_str().ok()?.to_owned())
    }

    impl KeyExtractor for Field {
        type Key = String;

        fn extract<T>(&self, request: &Request<T>) -> Result<String, RateLimitError> {
            key(request).ok_or_else(|| RateLimitError::Key("no key".into(), KEY.into()))
        }
    }

    impl GovernorKey for Field {
        type Key = String;

        fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
            key(request).ok_or(GovernorError::UnableToExtractKey)
        }
    }

    pub(super) async fn tower_rate_limiter(routes: Router, plan: &Plan) -> Outcome<Router> {
        let layer = RateLimitLayer::builder(Field)
            .limit(plan.limit.into())
            .window(WINDOW)
            .with_store(RedisStore::new(multiplexed(plan.redis).await?))
            .build()?;
        Ok(routes.layer(layer))
    }

    /// Its quota is a burst that fills up again evenly.
    pub(super) fn tower_governor(routes: Router, plan: &Plan) -> Outcome<Router> {
        let config = GovernorConfigBuilder::default()
            .period(WINDOW / plan.limit)
            .burst_size(plan.limit)
            .key_extractor(Field)
            .use_headers()
            .finish()
            .ok_or("a quota that tower_governor refuses")?;
        Ok(routes.layer(GovernorLayer::new(Arc::new(config))))
    }
}
