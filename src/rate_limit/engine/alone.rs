//! A limit in this process alone: its share of a quota, and what is left of that.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    NotUntil, RateLimiter,
    clock::{Clock, Reference as _},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use tokio::time::Instant;

use super::{ask::Question, counter_map::CounterState};
use crate::rate_limit::decision::Told;

/// Two centuries in nanoseconds: there is room to add a few of them.
const FOREVER: u64 = u64::MAX / 3;

/// What one process may let in of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// The most at once.
    burst: NonZeroU32,
    /// Between one request and the next.
    period: Duration,
}

/// What this process lets in without the store. However often the store comes and goes, it is never more than
/// the share: what is heard takes away from it, and gives nothing.
pub(super) struct Alone {
    share: Share,
    limiter: RateLimiter<NotKeyed, InMemoryState, Since, NoOpMiddleware<Nanos>>,
    /// When that was asked for which was heard of last.
    heard: Option<Instant>,
}

impl CounterState for Alone {}

/// Tokio's clock, which tests can stop.
#[derive(Debug, Clone)]
struct Since(Instant);

impl Clock for Since {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

impl Share {
    pub(super) fn of(question: &Question, processes: u64) -> Self {
        let quota = question.quota;
        let nanos = quota.window().as_nanos() * u128::from(processes);
        let period = nanos.div_ceil(u128::from(quota.limit().max(1))).max(1);
        let period = u64::try_from(period).unwrap_or(u64::MAX).min(FOREVER);
        // All of it refilled is a time that fits into nanoseconds, too.
        let burst = cells((quota.capacity() / processes).min(FOREVER / period));
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        Self { burst, period: Duration::from_nanos(period) }
    }

    fn limiter(&self) -> RateLimiter<NotKeyed, InMemoryState, Since, NoOpMiddleware<Nanos>> {
        // Not zero, so there is one.
        let rate = governor::Quota::with_period(self.period)
            .unwrap_or(governor::Quota::per_second(NonZeroU32::MIN));
        RateLimiter::direct_with_clock(rate.allow_burst(self.burst), Since(Instant::now()))
    }
}

impl Alone {
    pub(super) fn new(share: Share) -> Self {
        Self { share, limiter: share.limiter(), heard: None }
    }

    /// There are more processes than there were, or fewer. What was spent of the old share is spent of the new one.
    pub(super) fn is_to_have(&mut self, share: Share) {
        if self.share == share {
            return;
        }
        let left = self.left();
        (self.share, self.limiter) = (share, share.limiter());
        self.has_at_most(left);
    }

    /// The store has told what is left, of which so much is this process's.
    pub(super) fn has_heard(&mut self, sent: Instant, left: Option<u32>) {
        if self.heard.is_none_or(|heard| heard < sent) {
            self.heard = Some(sent);
            if let Some(left) = left {
                self.has_at_most(left);
            }
        }
    }

    /// If not, for how long at least.
    pub(super) fn lets_in(&mut self, cost: NonZeroU32) -> Result<(), Duration> {
        // No share is so small that the dearest request could never pass.
        match self.limiter.check_n(cost.min(self.share.burst)) {
            Ok(Ok(())) => Ok(()),
            // It can't be: that is no more than its burst.
            Err(_) => Err(self.share.period),
            Ok(Err(until)) => Err(Duration::max(self.wait(&until), Duration::from_millis(1))),
        }
    }

    /// What is told of a refusal that lasts for so long.
    pub(super) fn told(&mut self, retry: Duration) -> Told {
        // There is one more within a period at most.
        Told { remaining: self.left().into(), reset: retry.min(self.share.period), retry }
    }

    /// Whether nothing is spent of it any more. It must not be used after a yes, which spends it.
    pub(super) fn has_all_again(&self) -> bool {
        matches!(self.limiter.check_n(self.share.burst), Ok(Ok(())))
    }

    fn has_at_most(&mut self, most: u32) {
        let left = self.left();
        if let Some(spent) = NonZeroU32::new(left.saturating_sub(most)) {
            // There is as much.
            let _ = self.limiter.check_n(spent);
        }
    }

    /// How much could be let in now. Nothing is spent by it.
    fn left(&mut self) -> u32 {
        let burst = self.share.burst;
        match self.limiter.check_n(burst) {
            // A limiter can't be asked without letting in what is asked for, unless that is too much. This one was full.
            Ok(Ok(())) => {
                self.limiter = self.share.limiter();
                burst.get()
            }
            // For as long as the whole burst has to wait, that much of it is spent.
            Ok(Err(until)) => {
                let spent =
                    self.wait(&until).as_nanos().div_ceil(self.share.period.as_nanos().max(1));
                burst.get().saturating_sub(u32::try_from(spent).unwrap_or(u32::MAX))
            }
            Err(_) => 0,
        }
    }

    fn wait(&self, until: &NotUntil<Nanos>) -> Duration {
        until.earliest_possible().duration_since(self.limiter.clock().now()).into()
    }
}

pub(super) fn cells(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
