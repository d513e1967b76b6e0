//! The servers: one axum application, bare, behind `LockLayer`, and behind a middleware that a user of
//! rslock would write. Each is a process of its own.

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

use super::pings;
use crate::{
    contestant::{connect_store, multiplexed},
    lifeline::{Orders, say},
    outcome::Outcome,
    worker::runtime,
};

const AT_MOST: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Bare,
    LockLayer,
    /// The same, without waiting for its release.
    InBackground,
    ByHand,
    /// Two round trips that ask for nothing: what is left of a lock without the lock.
    TwoPings,
    /// The same, one for all that wait for one.
    SharedPings,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// Of the Redis.
    pub(crate) port: u16,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bare => "bare axum",
            Self::LockLayer => "LockLayer",
            Self::InBackground => "LockLayer, released in the background",
            Self::ByHand => "rslock by hand",
            Self::TwoPings => "two PINGs, no lock",
            Self::SharedPings => "two shared PINGs, no lock",
        })
    }
}

pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    let orders = Orders::listen(plan.kind, AT_MOST);
    let runtime = runtime()?;
    let app = runtime.block_on(app(&plan))?;
    let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
    let port = listener.local_addr()?.port();
    // The option that every server sets which answers small requests.
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        let _ = stream.set_nodelay(true);
    });
    runtime.spawn(async move { axum::serve(listener, app).await });
    say(&port.to_string())?;
    // Nothing is ever said: this ends when the conductor does.
    orders.next().map(drop)
}

async fn app(plan: &Plan) -> Outcome<Router> {
    let routes = Router::new().route("/orders/{id}/pay", post(async || "ok"));
    Ok(match plan.kind {
        Kind::Bare => routes,
        Kind::LockLayer => {
            let store = connect_store(plan.port).await?;
            routes.layer(LockLayer::by_path_param("id").store(&store))
        }
        Kind::InBackground => {
            let store = connect_store(plan.port).await?;
            routes.layer(LockLayer::by_path_param("id").store(&store).release_in_background())
        }
        Kind::ByHand => by_hand(routes, plan.port)?,
        Kind::TwoPings => {
            let connection = multiplexed(plan.port).await?;
            routes.route_layer(from_fn_with_state(connection, pings::alone))
        }
        Kind::SharedPings => {
            let shared = pings::Shared::over(multiplexed(plan.port).await?);
            routes.route_layer(from_fn_with_state(shared, pings::shared))
        }
    })
}

#[cfg(not(feature = "peers"))]
fn by_hand(_: Router, _: u16) -> Outcome<Router> {
    Err("rslock is not in this build (feature `peers`)".into())
}

#[cfg(feature = "peers")]
fn by_hand(routes: Router, port: u16) -> Outcome<Router> {
    let manager = crate::contestant::rslock_manager(port, Duration::from_millis(5));
    let lock = from_fn_with_state(manager, under_rslock);
    Ok(routes.route_layer(lock))
}

/// Acquire, run, release, answer: in that order, as `LockLayer` does it.
#[cfg(feature = "peers")]
async fn under_rslock(
    State(manager): State<rslock::LockManager>,
    axum::extract::Path(id): axum::extract::Path<String>,
    request: Request,
    next: Next,
) -> Response {
    let key = format!("order:{id}");
    let Ok(lock) = manager.lock(key.as_str(), crate::contestant::TTL).await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let response = next.run(request).await;
    manager.unlock(&lock).await;
    response
}
