//! actix-web servers, with as many workers as the axum servers have threads.

use std::net::TcpListener;

use actix_web::{App, HttpServer, dev::ServerHandle, rt::System, web};
use lockgate_actix_web::{Quota, RateLimitLayer};

use super::{KEY_HEADER, LimiterKind, LimiterServerPlan, QUOTA_WINDOW, handler};
use crate::{bench_result::BenchResult, lock_contender::connect_store};

const WORKERS: usize = 2;

/// Serves the application on the listener.
macro_rules! serve_app {
    ($listener:expr, $app:expr) => {{
        let app = $app;
        let server = HttpServer::new(move || app().route("/limited", web::get().to(handler)))
            .workers(WORKERS)
            .tcp_nodelay(true)
            .disable_signals()
            .listen($listener)?
            .run();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        Ok(handle)
    }};
}

/// Serves in a separate thread, because the actix runtime keeps the thread that it starts on.
pub(super) fn serve(plan: LimiterServerPlan, listener: TcpListener) -> BenchResult<ServerHandle> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let system = System::new();
        let started = system.block_on(start_server(&plan, listener));
        let is_started = started.is_ok();
        let _ = sender.send(started);
        if is_started {
            let _ = system.run();
        }
    });
    receiver.recv()?
}

async fn start_server(
    plan: &LimiterServerPlan,
    listener: TcpListener,
) -> BenchResult<ServerHandle> {
    let LimiterServerPlan { kind, redis_port, limit } = *plan;
    match kind {
        LimiterKind::LayerActix => {
            let quota = Quota::requests(limit.into()).per(QUOTA_WINDOW);
            let layer = RateLimitLayer::by_header(KEY_HEADER, quota)
                .store(&connect_store(redis_port).await?);
            serve_app!(listener, move || App::new().wrap(layer.clone()))
        }
        LimiterKind::ActixExtensible => peers::serve_extensible(plan, listener).await,
        LimiterKind::ActixLimitation => peers::serve_limitation(plan, listener),
        _ => serve_app!(listener, App::new),
    }
}

#[cfg(not(feature = "peers"))]
mod peers {
    use std::net::TcpListener;

    use actix_web::dev::ServerHandle;

    use super::{super::missing_peer, LimiterServerPlan};
    use crate::bench_result::BenchResult;

    pub(super) async fn serve_extensible(
        plan: &LimiterServerPlan,
        _: TcpListener,
    ) -> BenchResult<ServerHandle> {
        missing_peer(plan.kind)
    }

    pub(super) fn serve_limitation(
        plan: &LimiterServerPlan,
        _: TcpListener,
    ) -> BenchResult<ServerHandle> {
        missing_peer(plan.kind)
    }
}

#[cfg(feature = "peers")]
mod peers {
    use std::net::TcpListener;

    use actix_extensible_rate_limit::{
        RateLimiter,
        backend::{SimpleInputFunctionBuilder, redis::RedisBackend},
    };
    use actix_limitation::Limiter;
    use actix_web::{
        App, HttpServer,
        dev::{ServerHandle, ServiceRequest},
        error::ErrorBadRequest,
        web::{self, Data},
    };
    use redis_of_extensible::{Client, aio::ConnectionManager};

    use super::{KEY_HEADER, LimiterServerPlan, QUOTA_WINDOW, WORKERS, handler};
    use crate::bench_result::BenchResult;

    fn request_key(request: &ServiceRequest) -> Option<String> {
        Some(request.headers().get(KEY_HEADER)?.to_str().ok()?.to_owned())
    }

    pub(super) async fn serve_extensible(
        plan: &LimiterServerPlan,
        listener: TcpListener,
    ) -> BenchResult<ServerHandle> {
        let limit = u64::from(plan.limit);
        let client = Client::open(("127.0.0.1", plan.redis_port))?;
        let backend = RedisBackend::builder(ConnectionManager::new(client).await?).build();
        serve_app!(listener, move || {
            let input = SimpleInputFunctionBuilder::new(QUOTA_WINDOW, limit)
                .custom_fn(|request| request_key(request).ok_or_else(|| ErrorBadRequest("no key")))
                .build();
            App::new().wrap(RateLimiter::builder(backend.clone(), input).add_headers().build())
        })
    }

    pub(super) fn serve_limitation(
        plan: &LimiterServerPlan,
        listener: TcpListener,
    ) -> BenchResult<ServerHandle> {
        let limiter = Limiter::builder(format!("redis://127.0.0.1:{}", plan.redis_port))
            .limit(usize::try_from(plan.limit)?)
            .period(QUOTA_WINDOW)
            .key_by(request_key)
            .build()?;
        let limiter = Data::new(limiter);
        serve_app!(listener, move || {
            App::new().wrap(actix_limitation::RateLimiter::default()).app_data(limiter.clone())
        })
    }
}
