//! Server processes of `bench http`: a small application in axum and in actix-web, bare and behind
//! each limiter.

mod actix;
mod axum;
mod hand_written_limiter;

use std::{
    fmt,
    net::TcpListener,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    bench_result::BenchResult,
    runner_commands::{RunnerCommands, send_line},
};

const MAX_RUN_TIME: Duration = Duration::from_secs(120);

/// Window of every quota. Longer than any run, so that no units return during one.
const QUOTA_WINDOW: Duration = Duration::from_secs(3600);

/// Units that `LeasedAxum` leases at once. A process of figure 4 spends them within 40 ms.
pub(crate) const QUOTA_LEASE_SIZE: u32 = 1_000;

/// Header with the key.
const KEY_HEADER: &str = "x-key";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LimiterKind {
    BareAxum,
    LayerAxum,
    /// Like `LayerAxum`, with leases of `QUOTA_LEASE_SIZE`.
    LeasedAxum,
    TowerRateLimiter,
    /// Hand-written script; see [`hand_written_limiter`].
    HandWritten,
    TowerGovernor,
    /// One `PING` per request in place of a limit.
    Ping,
    BareActix,
    LayerActix,
    ActixExtensible,
    ActixLimitation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpFramework {
    Axum,
    Actix,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LimiterServerPlan {
    pub(crate) kind: LimiterKind,
    pub(crate) redis_port: u16,
    /// Quota of each key per `QUOTA_WINDOW`.
    pub(crate) limit: u32,
}

impl LimiterKind {
    pub(crate) fn framework(self) -> HttpFramework {
        match self {
            Self::BareActix | Self::LayerActix | Self::ActixExtensible | Self::ActixLimitation => {
                HttpFramework::Actix
            }
            _ => HttpFramework::Axum,
        }
    }

    pub(crate) fn is_lockgate(self) -> bool {
        matches!(self, Self::LayerAxum | Self::LeasedAxum | Self::LayerActix)
    }

    pub(crate) fn is_bare(self) -> bool {
        matches!(self, Self::BareAxum | Self::BareActix)
    }

    pub(crate) fn is_limited(self) -> bool {
        !self.is_bare() && self != Self::Ping
    }

    /// Returns the server without a limiter in the same framework.
    pub(crate) fn bare_counterpart(self) -> Self {
        match self.framework() {
            HttpFramework::Axum => Self::BareAxum,
            HttpFramework::Actix => Self::BareActix,
        }
    }
}

impl fmt::Display for LimiterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BareAxum => "bare axum",
            Self::LayerAxum => "RateLimitLayer, axum",
            Self::LeasedAxum => "RateLimitLayer with leases, axum",
            Self::TowerRateLimiter => "tower-rate-limiter",
            Self::HandWritten => "by hand, axum",
            Self::TowerGovernor => "tower_governor (in memory)",
            Self::Ping => "one PING, axum",
            Self::BareActix => "bare actix-web",
            Self::LayerActix => "RateLimitLayer, actix-web",
            Self::ActixExtensible => "actix-extensible-rate-limit",
            Self::ActixLimitation => "actix-limitation",
        })
    }
}

/// Number of handler runs, which must equal the number of 200 responses.
static HANDLER_RUNS: AtomicU64 = AtomicU64::new(0);

async fn handler() -> &'static str {
    HANDLER_RUNS.fetch_add(1, Ordering::Relaxed);
    "ok"
}

/// Serves, sends the port, and sends the number of handler runs on each command.
pub(crate) fn main(plan: &str) -> BenchResult<()> {
    let plan: LimiterServerPlan = serde_json::from_str(plan)?;
    let commands = RunnerCommands::listen(plan.kind, MAX_RUN_TIME);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    // Keeps the runtime or the server handle alive.
    let _server: Box<dyn std::any::Any> = match plan.kind.framework() {
        HttpFramework::Axum => Box::new(axum::serve(&plan, listener)?),
        HttpFramework::Actix => Box::new(actix::serve(plan, listener)?),
    };
    send_line(&port.to_string())?;
    while commands.next_command().is_ok() {
        send_line(&HANDLER_RUNS.load(Ordering::Relaxed).to_string())?;
    }
    Ok(())
}

/// Reports that the peer is not compiled in.
#[cfg(not(feature = "peers"))]
fn missing_peer<T>(kind: LimiterKind) -> BenchResult<T> {
    Err(format!("{kind} is not in this build (feature `peers`)").into())
}
