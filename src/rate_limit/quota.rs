//! Quotas: a number of requests per window, and the way of counting them.

use std::time::Duration;

use crate::{durations::MAX_DURATION, store::QuotaRule};

/// Number of requests per window.
///
/// There is one spelling, `Quota::requests(100).per(Duration::from_secs(60))`. A short form such as
/// "per_second(n)" could be read as "n per second" or as "one in n seconds".
///
/// # Text
///
/// In a configuration, a quota is a text: `100 per 60s`, which may be followed by `sliding`, `gcra`
/// or `burst 20`, or `unlimited`. The unit of the window is `ns`, `us`, `ms`, `s`, `min`, `h` or
/// `d`. [`Display`](std::fmt::Display), [`FromStr`](std::str::FromStr) and serde use this form.
/// serde also reads `{"counting":"fixed","limit":100,"window_ms":60000}`, the form in the store;
/// the other values of `counting` are `sliding`, `gcra` (with a `burst`) and `unlimited`. Values
/// out of range and unknown fields are errors.
///
/// ```
/// use std::time::Duration;
/// use lockgate::Quota;
///
/// let quota: Quota = "100 per 60s burst 20".parse()?;
/// assert_eq!(quota, Quota::requests(100).per(Duration::from_secs(60)).burst(20));
/// let error = "100 per minute".parse::<Quota>().unwrap_err();
/// assert!(error.to_string().contains("`minute` is no duration such as"));
/// # Ok::<(), lockgate::Error>(())
/// ```
///
/// # Worst case
///
/// With a limit of `n` per `w`, these are the most requests admitted in any stretch of time:
///
/// | counting | at once | within `d <= w` | within `w` |
/// |---|---|---|---|
/// | fixed window (default) | `2n`, around the end of a window | `2n` | `2n` |
/// | [`sliding`](Self::sliding) | `n` | `n + n * d/w` | `2n`, never at once |
/// | [`gcra`](Self::gcra) | `n` | `n + n * d/w` | `2n`, never at once |
/// | [`burst(b)`](Self::burst) | `b` | `b + n * d/w` | `b + n` |
///
/// A request counts by its cost. The store decides, by its clock, for all processes together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
/// use std::time::Duration;
/// use lockgate::{Quota, Store};
///
/// let limit = Store::memory().rate_limiter(Quota::requests(2).per(Duration::from_secs(3600)));
/// assert_eq!(limit.check("customer:7", 1).await?.remaining(), 1);
/// assert_eq!(limit.check("customer:8", 2).await?.remaining(), 0);
/// # Ok(()) }
/// ```
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

/// Number of requests, to be completed to a [`Quota`].
#[derive(Debug, Clone, Copy)]
#[must_use = "a quota needs its window: .per(duration)"]
pub struct QuotaBuilder(u64);

/// Maximum number of requests per window. Counters in the store are exact up to 2^53.
pub(super) const MAX_LIMIT: u64 = 1 << 50;

impl Quota {
    /// Starts a quota with this number of requests, at most 2^50. [`per`](QuotaBuilder::per)
    /// completes it.
    ///
    /// 0 refuses every request with a cost, whatever the [`burst`](Self::burst), and without asking
    /// the store: for plans that do not include a feature. Clients see a limit of 0 and are told to
    /// retry after a window, since their plan may change.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockgate::Quota;
    ///
    /// let minute = Quota::requests(100).per(Duration::from_secs(60));
    /// assert_eq!((minute.limit(), minute.window()), (100, Duration::from_secs(60)));
    /// assert!(Quota::requests(0).per(Duration::from_secs(60)).is_zero());
    /// ```
    pub const fn requests(requests: u64) -> QuotaBuilder {
        QuotaBuilder(if requests > MAX_LIMIT { MAX_LIMIT } else { requests })
    }

    /// Creates a quota without a limit: nothing is charged, and the response has no rate headers.
    /// For plans without a limit beside others with one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
    /// use lockgate::{Quota, Store};
    ///
    /// let limit = Store::memory().rate_limiter(Quota::unlimited());
    /// let decision = limit.check("customer:7", 1).await?;
    /// assert!(decision.is_admitted());
    /// assert_eq!(decision.remaining(), u64::MAX);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { limit: MAX_LIMIT, window: MAX_DURATION, counting: QuotaCounting::Unlimited }
    }

    /// Counts by a sliding window. Requests of the previous window count by the part of it that the
    /// sliding window still covers (as at Cloudflare: "How we built rate limiting capable of
    /// scaling to millions of domains", 2017). This avoids bursts around the end of a window, and
    /// needs a second number for each key.
    ///
    /// An unlimited quota stays unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockgate::Quota;
    ///
    /// let minute = Quota::requests(100).per(Duration::from_secs(60)).sliding();
    /// assert_eq!(minute.capacity(), 100);
    /// assert!(Quota::unlimited().sliding().is_unlimited());
    /// ```
    #[must_use]
    pub const fn sliding(self) -> Self {
        self.with_counting(QuotaCounting::Sliding)
    }

    /// Admits requests evenly, one each `window / limit`, and the whole limit at once for a key
    /// that was idle for a window (GCRA, a leaky bucket as a meter: ITU-T I.371, virtual
    /// scheduling).
    ///
    /// An unlimited quota stays unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockgate::Quota;
    ///
    /// // One request each 600 ms, or 100 at once after a minute without requests.
    /// let minute = Quota::requests(100).per(Duration::from_secs(60)).gcra();
    /// assert_eq!(minute.capacity(), 100);
    /// ```
    #[must_use]
    pub const fn gcra(self) -> Self {
        self.with_counting(QuotaCounting::Gcra { burst: self.limit })
    }

    /// Like [`gcra`](Self::gcra), with at most `burst` requests at once (at least 1, at most 2^50).
    /// The burst may exceed the limit, for clients that save up. A higher cost than the burst is
    /// never admitted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
    /// use std::time::Duration;
    /// use lockgate::{Quota, Store};
    ///
    /// // Two requests at once, and one more each minute.
    /// let hour = Quota::requests(60).per(Duration::from_secs(3600)).burst(2);
    /// let limit = Store::memory().rate_limiter(hour);
    /// assert!(limit.check("customer:7", 2).await?.is_admitted());
    /// assert!(!limit.check("customer:7", 1).await?.is_admitted());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        self.with_counting(QuotaCounting::Gcra { burst: clamp_burst(burst) })
    }

    /// Returns the number of requests per window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the length of the window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// Returns the most units that can be charged at once: the burst, or the limit if there is no
    /// burst. 0 if nothing is ever admitted.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.counting {
            QuotaCounting::Gcra { .. } if self.limit == 0 => 0,
            QuotaCounting::Gcra { burst } => burst,
            QuotaCounting::Fixed | QuotaCounting::Sliding | QuotaCounting::Unlimited => self.limit,
        }
    }

    /// Returns the highest cost that a charge after the fact can have, even beyond the limit (see
    /// [`RateStatus::set_cost`](super::RateStatus::set_cost)): ten times the limit, or the burst if
    /// that is larger. Under GCRA a debt is paid off at the quota's rate, so an unbounded charge
    /// could refuse a key for a century.
    #[must_use]
    pub const fn max_charge(&self) -> u64 {
        match self.to_rule() {
            Some(rule) => rule.max_charge(),
            None => u64::MAX,
        }
    }

    /// Returns true if every request with a cost is refused.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.limit == 0
    }

    /// Returns true if there is no limit.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        matches!(self.counting, QuotaCounting::Unlimited)
    }

    /// Returns true for a fixed window: its charges do not depend on their time within the window,
    /// and its end restores the whole quota.
    pub(super) const fn is_fixed_window(&self) -> bool {
        matches!(self.counting, QuotaCounting::Fixed)
    }

    /// Creates the quota from its rule in the store: the inverse of [`to_rule`](Self::to_rule).
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

    /// Returns the rule by which the store counts, or `None` for an unlimited quota.
    pub(super) const fn to_rule(self) -> Option<QuotaRule> {
        let Self { limit, window, counting } = self;
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
    /// Sets the length of the window: at least 1 ms, at most a year.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockgate::Quota;
    ///
    /// const HOUR: Quota = Quota::requests(1000).per(Duration::from_secs(3600));
    /// assert_eq!(HOUR.window(), Duration::from_secs(3600));
    /// ```
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
