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

use super::{check_request::PolicyCheck, counter_map::CounterState};
use crate::rate_limit::decision::QuotaReading;

/// Two centuries in nanoseconds: there is room to add a few of them.
const MAX_NANOS: u64 = u64::MAX / 3;

/// What one process may let in of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaShare {
    /// The most at once.
    burst: NonZeroU32,
    /// Between one request and the next.
    period: Duration,
}

/// What this process lets in without the store. However often the store comes and goes, it is never more than
/// the share: what is heard takes away from it, and gives nothing.
pub(super) struct OutageLimiter {
    share: QuotaShare,
    limiter: RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>>,
    /// When that was asked for which was heard of last.
    last_answer_sent_at: Option<Instant>,
}

impl CounterState for OutageLimiter {}

/// Tokio's clock, which tests can stop.
#[derive(Debug, Clone)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

impl QuotaShare {
    pub(super) fn for_process(question: &PolicyCheck, processes: u64) -> Self {
        let quota = question.quota;
        let nanos = quota.window().as_nanos() * u128::from(processes);
        let period = nanos.div_ceil(u128::from(quota.limit().max(1))).max(1);
        let period = u64::try_from(period).unwrap_or(u64::MAX).min(MAX_NANOS);
        // All of it refilled is a time that fits into nanoseconds, too.
        let burst = saturating_u32((quota.capacity() / processes).min(MAX_NANOS / period));
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        Self { burst, period: Duration::from_nanos(period) }
    }

    fn build_limiter(
        &self,
    ) -> RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>> {
        // Not zero, so there is one.
        let rate = governor::Quota::with_period(self.period)
            .unwrap_or(governor::Quota::per_second(NonZeroU32::MIN));
        RateLimiter::direct_with_clock(rate.allow_burst(self.burst), TokioClock(Instant::now()))
    }
}

impl OutageLimiter {
    pub(super) fn new(share: QuotaShare) -> Self {
        Self { share, limiter: share.build_limiter(), last_answer_sent_at: None }
    }

    /// There are more processes than there were, or fewer. What was spent of the old share is spent of the new one.
    pub(super) fn set_share(&mut self, share: QuotaShare) {
        if self.share == share {
            return;
        }
        let left = self.remaining();
        (self.share, self.limiter) = (share, share.build_limiter());
        self.cap_remaining(left);
    }

    /// The store has told what is left, of which so much is this process's.
    pub(super) fn apply_answer(&mut self, sent: Instant, left: Option<u32>) {
        if self.last_answer_sent_at.is_none_or(|heard| heard < sent) {
            self.last_answer_sent_at = Some(sent);
            if let Some(left) = left {
                self.cap_remaining(left);
            }
        }
    }

    /// If not, for how long at least.
    pub(super) fn try_admit(&mut self, cost: NonZeroU32) -> Result<(), Duration> {
        // No share is so small that the dearest request could never pass.
        match self.limiter.check_n(cost.min(self.share.burst)) {
            Ok(Ok(())) => Ok(()),
            // It can't be: that is no more than its burst.
            Err(_) => Err(self.share.period),
            Ok(Err(until)) => Err(Duration::max(self.wait_time(&until), Duration::from_millis(1))),
        }
    }

    /// What is told of a refusal that lasts for so long.
    pub(super) fn refusal_reading(&mut self, retry: Duration) -> QuotaReading {
        // There is one more within a period at most.
        QuotaReading {
            remaining: self.remaining().into(),
            reset_after: retry.min(self.share.period),
            retry_after: retry,
        }
    }

    /// Whether nothing is spent of it any more. It must not be used after a yes, which spends it.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.limiter.check_n(self.share.burst), Ok(Ok(())))
    }

    fn cap_remaining(&mut self, most: u32) {
        let left = self.remaining();
        if let Some(spent) = NonZeroU32::new(left.saturating_sub(most)) {
            // There is as much.
            let _ = self.limiter.check_n(spent);
        }
    }

    /// How much could be let in now. Nothing is spent by it.
    fn remaining(&mut self) -> u32 {
        let burst = self.share.burst;
        match self.limiter.check_n(burst) {
            // A limiter can't be asked without letting in what is asked for, unless that is too much. This one was full.
            Ok(Ok(())) => {
                self.limiter = self.share.build_limiter();
                burst.get()
            }
            // For as long as the whole burst has to wait, that much of it is spent.
            Ok(Err(until)) => {
                let spent =
                    self.wait_time(&until).as_nanos().div_ceil(self.share.period.as_nanos().max(1));
                burst.get().saturating_sub(u32::try_from(spent).unwrap_or(u32::MAX))
            }
            Err(_) => 0,
        }
    }

    fn wait_time(&self, until: &NotUntil<Nanos>) -> Duration {
        until.earliest_possible().duration_since(self.limiter.clock().now()).into()
    }
}

pub(super) fn saturating_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
