//! The servers of `bench http`: one small application in axum and one in actix-web, bare and behind
//! everybody's limiter. Each is a process of its own.

mod actix;
mod axum;
mod by_hand;

use std::{
    fmt,
    net::TcpListener,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    lifeline::{Orders, say},
    outcome::Outcome,
};

const AT_MOST: Duration = Duration::from_secs(120);

/// The window of every quota: longer than any run, so that nobody is given anything back meanwhile.
const WINDOW: Duration = Duration::from_secs(3600);

/// What `LeasedAxum` leases at once: what a process of figure 4 answers within 40 ms.
pub(crate) const LEASE: u32 = 1_000;

/// The field that carries the key.
const KEY: &str = "x-key";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    BareAxum,
    LayerAxum,
    /// The same, with so much of the quota leased at a time.
    LeasedAxum,
    TowerRateLimiter,
    /// A script of one's own.
    ByHand,
    TowerGovernor,
    /// No limit, but one round trip to Redis.
    Ping,
    BareActix,
    LayerActix,
    Extensible,
    Limitation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framework {
    Axum,
    Actix,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// Of the Redis.
    pub(crate) redis: u16,
    /// Requests of each key in an hour.
    pub(crate) limit: u32,
}

impl Kind {
    pub(crate) fn framework(self) -> Framework {
        match self {
            Self::BareActix | Self::LayerActix | Self::Extensible | Self::Limitation => {
                Framework::Actix
            }
            _ => Framework::Axum,
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::LayerAxum | Self::LeasedAxum | Self::LayerActix)
    }

    pub(crate) fn is_bare(self) -> bool {
        matches!(self, Self::BareAxum | Self::BareActix)
    }

    /// Whether it refuses anybody.
    pub(crate) fn is_limited(self) -> bool {
        !self.is_bare() && self != Self::Ping
    }

    /// What it is compared with.
    pub(crate) fn bare(self) -> Self {
        match self.framework() {
            Framework::Axum => Self::BareAxum,
            Framework::Actix => Self::BareActix,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BareAxum => "bare axum",
            Self::LayerAxum => "RateLimitLayer, axum",
            Self::LeasedAxum => "RateLimitLayer with leases, axum",
            Self::TowerRateLimiter => "tower-rate-limiter",
            Self::ByHand => "by hand, axum",
            Self::TowerGovernor => "tower_governor (in memory)",
            Self::Ping => "one PING, axum",
            Self::BareActix => "bare actix-web",
            Self::LayerActix => "RateLimitLayer, actix-web",
            Self::Extensible => "actix-extensible-rate-limit",
            Self::Limitation => "actix-limitation",
        })
    }
}

/// How often the handler ran: as often as 200 was answered, or the figure is worth nothing.
static RAN: AtomicU64 = AtomicU64::new(0);

/// The handler of all of them.
async fn handler() -> &'static str {
    RAN.fetch_add(1, Ordering::Relaxed);
    "ok"
}

/// Says its port, serves, and says how often the handler ran when it is asked.
pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    let orders = Orders::listen(plan.kind, AT_MOST);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    // What serves must live as long as this: a runtime, or a handle of one.
    let _serving: Box<dyn std::any::Any> = match plan.kind.framework() {
        Framework::Axum => Box::new(axum::serve(&plan, listener)?),
        Framework::Actix => Box::new(actix::serve(plan, listener)?),
    };
    say(&port.to_string())?;
    while orders.next().is_ok() {
        say(&RAN.load(Ordering::Relaxed).to_string())?;
    }
    Ok(())
}

/// What a peer is when it has not been compiled.
#[cfg(not(feature = "peers"))]
fn absent<T>(kind: Kind) -> Outcome<T> {
    Err(format!("{kind} is not in this build (feature `peers`)").into())
}
