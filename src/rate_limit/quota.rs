//! How much is allowed.

use std::{sync::Arc, time::Duration};

/// So many requests per window.
///
/// Spelled in one way, `Quota::requests(100).per(Duration::from_secs(60))`: a short form such as
/// "per_second(n)" would be read as "n per second" by some and as "one in n seconds" by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    requests: u64,
    window: Duration,
}

/// A number of requests, on its way to be a [`Quota`].
#[derive(Debug, Clone, Copy)]
#[must_use = "a quota needs its window: .per(duration)"]
pub struct Requests(u64);

/// Most requests of one window: counters in the store stay exact up to 2^53.
const MOST: u64 = 1 << 50;

impl Quota {
    /// This many requests (at least 1, at most 2^50), per what follows.
    pub const fn requests(requests: u64) -> Requests {
        let requests = if requests == 0 { 1 } else { requests };
        Requests(if requests > MOST { MOST } else { requests })
    }

    /// Requests in one window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.requests
    }

    /// Length of a window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.window
    }
}

impl Requests {
    /// The window's length: at least 1 ms, at most a year.
    #[must_use]
    pub const fn per(self, window: Duration) -> Quota {
        const YEAR: u64 = 365 * 24 * 60 * 60;
        let window = if window.as_millis() == 0 { Duration::from_millis(1) } else { window };
        let window = if window.as_secs() > YEAR { Duration::from_secs(YEAR) } else { window };
        Quota { requests: self.0, window }
    }
}

/// A quota with a name, which clients see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    name: Arc<str>,
    quota: Quota,
}

impl Policy {
    /// A policy named `default`.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self { name: "default".into(), quota }
    }

    /// The name in `RateLimit-Policy`, and part of the counter's name: policies of one name
    /// share their counters, wherever they stand. Letters, digits, `-`, `_` and `.`; all else
    /// becomes `-`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        self.name = name.chars().map(|c| if plain(c) { c } else { '-' }).collect::<String>().into();
        self
    }

    /// The name.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.name
    }

    /// The quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// The policy's part of a counter's key. A changed quota keeps what was spent.
    pub(super) fn counter(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}
