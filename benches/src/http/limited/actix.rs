//! On actix-web, with as many workers as the others have threads.

use std::net::TcpListener;

use actix_web::{App, HttpServer, dev::ServerHandle, rt::System, web};
use lockgate_actix_web::{Quota, RateLimitLayer};

use super::{KEY, Kind, Plan, WINDOW, handler};
use crate::{contestant::connect_store, outcome::Outcome};

const WORKERS: usize = 2;

/// Serves this application on the listener.
macro_rules! served {
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

/// In a thread of its own: actix's runtime does not let go of the one it is started on.
pub(super) fn serve(plan: Plan, listener: TcpListener) -> Outcome<ServerHandle> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let system = System::new();
        let started = system.block_on(start(&plan, listener));
        let serves = started.is_ok();
        let _ = tell.send(started);
        if serves {
            let _ = system.run();
        }
    });
    told.recv()?
}

async fn start(plan: &Plan, listener: TcpListener) -> Outcome<ServerHandle> {
    let Plan { kind, redis, limit } = *plan;
    match kind {
        Kind::LayerActix => {
            let quota = Quota::requests(limit.into()).per(WINDOW);
            let layer = RateLimitLayer::by_header(KEY, quota).store(&connect_store(redis).await?);
            served!(listener, move || App::new().wrap(layer.clone()))
        }
        Kind::Extensible => peers::extensible(plan, listener).await,
        Kind::Limitation => peers::limitation(plan, listener),
        _ => served!(listener, App::new),
    }
}

#[cfg(not(feature = "peers"))]
mod peers {
    use std::net::TcpListener;

    use actix_web::dev::ServerHandle;

    use super::{super::absent, Plan};
    use crate::outcome::Outcome;

    pub(super) async fn extensible(plan: &Plan, _: TcpListener) -> Outcome<ServerHandle> {
        absent(plan.kind)
    }

    pub(super) fn limitation(plan: &Plan, _: TcpListener) -> Outcome<ServerHandle> {
        absent(plan.kind)
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

    use super::{KEY, Plan, WINDOW, WORKERS, handler};
    use crate::outcome::Outcome;

    fn key(request: &ServiceRequest) -> Option<String> {
        Some(request.headers().get(KEY)?.to_str().ok()?.to_owned())
    }

    pub(super) async fn extensible(plan: &Plan, listener: TcpListener) -> Outcome<ServerHandle> {
        let limit = u64::from(plan.limit);
        let client = Client::open(("127.0.0.1", plan.redis))?;
        let backend = RedisBackend::builder(ConnectionManager::new(client).await?).build();
        served!(listener, move || {
            let input = SimpleInputFunctionBuilder::new(WINDOW, limit)
                .custom_fn(|request| key(request).ok_or_else(|| ErrorBadRequest("no key")))
                .build();
            App::new().wrap(RateLimiter::builder(backend.clone(), input).add_headers().build())
        })
    }

    pub(super) fn limitation(plan: &Plan, listener: TcpListener) -> Outcome<ServerHandle> {
        let limiter = Limiter::builder(format!("redis://127.0.0.1:{}", plan.redis))
            .limit(usize::try_from(plan.limit)?)
            .period(WINDOW)
            .key_by(key)
            .build()?;
        let limiter = Data::new(limiter);
        served!(listener, move || {
            App::new().wrap(actix_limitation::RateLimiter::default()).app_data(limiter.clone())
        })
    }
}
