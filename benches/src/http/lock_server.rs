//! Server processes of the lock figures: one axum application, bare, behind `LockLayer`, and behind
//! a middleware that a user of rslock would write.

use std::{fmt, time::Duration};

use axum::{Router, middleware::from_fn_with_state, routing::post};
#[cfg(feature = "peers")]
use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use lockgate_axum::LockLayer;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::ping_middleware;
use crate::{
    bench_result::BenchResult,
    lock_contender::{connect_multiplexed, connect_store},
    lock_worker::worker_runtime,
    runner_commands::{RunnerCommands, send_line},
};

const MAX_RUN_TIME: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockServerKind {
    Bare,
    LockLayer,
    /// Like `LockLayer`, but does not wait for the release.
    BackgroundRelease,
    RslockMiddleware,
    /// Two `PING`s in place of the lock, which leaves the round trips without the lock.
    TwoPings,
    /// Like `TwoPings`, with one `PING` for all requests that wait for one.
    SharedPings,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LockServerPlan {
    pub(crate) kind: LockServerKind,
    pub(crate) redis_port: u16,
}

impl fmt::Display for LockServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bare => "bare axum",
            Self::LockLayer => "LockLayer",
            Self::BackgroundRelease => "LockLayer, released in the background",
            Self::RslockMiddleware => "rslock by hand",
            Self::TwoPings => "two PINGs, no lock",
            Self::SharedPings => "two shared PINGs, no lock",
        })
    }
}

pub(crate) fn main(plan: &str) -> BenchResult<()> {
    let plan: LockServerPlan = serde_json::from_str(plan)?;
    let commands = RunnerCommands::listen(plan.kind, MAX_RUN_TIME);
    let runtime = worker_runtime()?;
    let app = runtime.block_on(build_app(&plan))?;
    let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
    let port = listener.local_addr()?.port();
    // A server that answers small requests sets this option.
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        let _ = stream.set_nodelay(true);
    });
    runtime.spawn(async move { axum::serve(listener, app).await });
    send_line(&port.to_string())?;
    // No command ever comes. This returns when the runner ends.
    commands.next_command().map(drop)
}

async fn build_app(plan: &LockServerPlan) -> BenchResult<Router> {
    let routes = Router::new().route("/orders/{id}/pay", post(async || "ok"));
    Ok(match plan.kind {
        LockServerKind::Bare => routes,
        LockServerKind::LockLayer => {
            let store = connect_store(plan.redis_port).await?;
            routes.layer(LockLayer::by_path_param("id").store(&store))
        }
        LockServerKind::BackgroundRelease => {
            let store = connect_store(plan.redis_port).await?;
            routes.layer(LockLayer::by_path_param("id").store(&store).release_in_background())
        }
        LockServerKind::RslockMiddleware => with_rslock(routes, plan.redis_port)?,
        LockServerKind::TwoPings => {
            let connection = connect_multiplexed(plan.redis_port).await?;
            routes.route_layer(from_fn_with_state(connection, ping_middleware::separate_pings))
        }
        LockServerKind::SharedPings => {
            let shared =
                ping_middleware::PingBatcher::start(connect_multiplexed(plan.redis_port).await?);
            routes.route_layer(from_fn_with_state(shared, ping_middleware::shared_pings))
        }
    })
}

#[cfg(not(feature = "peers"))]
fn with_rslock(_: Router, _: u16) -> BenchResult<Router> {
    Err("rslock is not in this build (feature `peers`)".into())
}

#[cfg(feature = "peers")]
fn with_rslock(routes: Router, port: u16) -> BenchResult<Router> {
    let manager = crate::lock_contender::rslock_manager(port, Duration::from_millis(5));
    let layer = from_fn_with_state(manager, rslock_middleware);
    Ok(routes.route_layer(layer))
}

/// Acquires, runs the handler, releases and responds in that order, like `LockLayer`.
#[cfg(feature = "peers")]
async fn rslock_middleware(
    State(manager): State<rslock::LockManager>,
    axum::extract::Path(id): axum::extract::Path<String>,
    request: Request,
    next: Next,
) -> Response {
    let key = format!("order:{id}");
    let Ok(lock) = manager.lock(key.as_str(), crate::lock_contender::LOCK_TTL).await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let response = next.run(request).await;
    manager.unlock(&lock).await;
    response
}
