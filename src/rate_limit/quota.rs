//! How much is allowed, and how it is counted.

use std::time::Duration;

use crate::{clock::MAX_DURATION, store::QuotaRule};

/// So many requests per window.
///
/// Spelled in one way, `Quota::requests(100).per(Duration::from_secs(60))`: a short form such as
/// "per_second(n)" would be read as "n per second" by some and as "one in n seconds" by others.
///
/// # What is admitted at worst
///
/// With a limit of `n` per `w`, in any stretch of time:
///
/// | counting | at once | within `d <= w` | within `w` |
/// |---|---|---|---|
/// | fixed window (default) | `2n`, around the end of a window | `2n` | `2n` |
/// | [`sliding`](Self::sliding) | `n` | `n + n * d/w` | `2n`, never at once |
/// | [`gcra`](Self::gcra) | `n` | `n + n * d/w` | `2n`, never at once |
/// | [`burst(b)`](Self::burst) | `b` | `b + n * d/w` | `b + n` |
///
/// What is charged counts by its cost. All of it is decided in the store, by its clock, for all processes
/// together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    window: Duration,
    counting: QuotaCounting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum QuotaCounting {
    Fixed,
    Sliding,
    Gcra { burst: u64 },
    Unlimited,
}

/// A number of requests, on its way to be a [`Quota`].
#[derive(Debug, Clone, Copy)]
#[must_use = "a quota needs its window: .per(duration)"]
pub struct QuotaBuilder(u64);

/// Most requests of one window: counters in the store stay exact up to 2^53.
const MAX_LIMIT: u64 = 1 << 50;

impl Quota {
    /// This many requests (at most 2^50), per what follows.
    ///
    /// 0 refuses every request that costs anything, whatever its [`burst`](Self::burst), and without asking the store:
    /// for plans that do not include something. Clients read a limit of 0, and are told to come back after a window,
    /// since their plan may change.
    pub const fn requests(requests: u64) -> QuotaBuilder {
        QuotaBuilder(if requests > MAX_LIMIT { MAX_LIMIT } else { requests })
    }

    /// No limit: nothing is charged, and nothing is told in the response. For plans that have none,
    /// beside others that have.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { limit: MAX_LIMIT, window: MAX_DURATION, counting: QuotaCounting::Unlimited }
    }

    /// Counts by a sliding window: what was spent in the window before counts by the part of it that is
    /// still within reach (as Cloudflare counts: "How we built rate limiting capable of scaling to millions of
    /// domains", 2017). No burst around a window's end, at the price of a second number per key.
    ///
    /// An unlimited quota stays one.
    #[must_use]
    pub const fn sliding(self) -> Self {
        self.with_counting(QuotaCounting::Sliding)
    }

    /// Lets requests in evenly, one each `window / limit`, and the whole limit at once to who has not
    /// come for a window (GCRA, a leaky bucket as a meter: ITU-T I.371, by virtual scheduling).
    ///
    /// An unlimited quota stays one.
    #[must_use]
    pub const fn gcra(self) -> Self {
        self.with_counting(QuotaCounting::Gcra { burst: self.limit })
    }

    /// As [`gcra`](Self::gcra), with at most so many at once (at least 1, at most 2^50; more than the
    /// limit is allowed, for clients that save up). Nothing that costs more is ever let in.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        self.with_counting(QuotaCounting::Gcra { burst: clamp_burst(burst) })
    }

    /// Requests in one window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Length of a window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// Most that can be charged at once: the burst, or the limit where there is none. 0 if nothing is ever let in.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.counting {
            QuotaCounting::Gcra { .. } if self.limit == 0 => 0,
            QuotaCounting::Gcra { burst } => burst,
            QuotaCounting::Fixed | QuotaCounting::Sliding | QuotaCounting::Unlimited => self.limit,
        }
    }

    /// Most that one charge counts after the fact, beyond the limit too (see
    /// [`RateStatus::set_cost`](super::RateStatus::set_cost)): ten times the limit, or the burst if that is larger. Under
    /// GCRA a debt is paid off at the quota's rate, so a charge without a bound could refuse a key for a century.
    #[must_use]
    pub const fn max_charge(&self) -> u64 {
        match self.to_rule() {
            Some(rule) => rule.max_charge(),
            None => u64::MAX,
        }
    }

    /// Whether nothing that costs anything is ever let in.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.limit == 0
    }

    /// Whether there is no limit at all.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        matches!(self.counting, QuotaCounting::Unlimited)
    }

    /// Whether there is a window in which it does not matter when something is charged, and at whose end all
    /// of it is there again.
    pub(super) const fn is_fixed_window(&self) -> bool {
        matches!(self.counting, QuotaCounting::Fixed)
    }

    /// What the store counts so: the other way round than [`rule`](Self::to_rule).
    pub(super) const fn from_rule(rule: QuotaRule) -> Self {
        let (limit, window, counting) = match rule {
            QuotaRule::Fixed { limit, window } => (limit, window, QuotaCounting::Fixed),
            QuotaRule::Sliding { limit, window } => (limit, window, QuotaCounting::Sliding),
            QuotaRule::Gcra { limit, window, burst } => {
                (limit, window, QuotaCounting::Gcra { burst })
            }
        };
        Self { limit, window, counting }
    }

    /// How the store counts it; `None` if there is nothing to count.
    pub(super) const fn to_rule(&self) -> Option<QuotaRule> {
        let Self { limit, window, counting } = *self;
        match counting {
            QuotaCounting::Fixed => Some(QuotaRule::Fixed { limit, window }),
            QuotaCounting::Sliding => Some(QuotaRule::Sliding { limit, window }),
            QuotaCounting::Gcra { burst } => Some(QuotaRule::Gcra { limit, window, burst }),
            QuotaCounting::Unlimited => None,
        }
    }

    const fn with_counting(self, counting: QuotaCounting) -> Self {
        match self.counting {
            QuotaCounting::Unlimited => self,
            QuotaCounting::Fixed | QuotaCounting::Sliding | QuotaCounting::Gcra { .. } => {
                Self { counting, ..self }
            }
        }
    }
}

impl QuotaBuilder {
    /// The window's length: at least 1 ms, at most a year.
    #[must_use]
    pub const fn per(self, window: Duration) -> Quota {
        let window = if window.as_millis() == 0 { Duration::from_millis(1) } else { window };
        let window = if window.as_secs() >= MAX_DURATION.as_secs() { MAX_DURATION } else { window };
        Quota { limit: self.0, window, counting: QuotaCounting::Fixed }
    }
}

const fn clamp_burst(n: u64) -> u64 {
    match n {
        0 => 1,
        MAX_LIMIT.. => MAX_LIMIT,
        n => n,
    }
}
