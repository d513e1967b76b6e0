//! While the store is away: a limit in this process alone, at its share of the quota.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use governor::{
    RateLimiter,
    clock::{Clock, Reference as _},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Engine,
    ask::{Ask, Question},
    ways::{Ways, Worth},
};
use crate::error::{Error, ErrorKind};

/// So long the store must have answered before it is asked again: a store that comes and goes would have
/// every key limited by both, in turns.
const WELL: Duration = Duration::from_secs(1);

/// Failures without a success between them, after which the store counts as away.
const FAILURES: u32 = 3;

/// Two centuries in nanoseconds: there is room to add a few of them.
const FOREVER: u64 = u64::MAX / 3;

/// Whether the store is away, and what is decided meanwhile.
#[derive(Default)]
pub(super) struct Away {
    /// Requests are decided here.
    away: AtomicBool,
    failures: AtomicU32,
    /// Since when it has answered again.
    well_since: Mutex<Option<Instant>>,
    processes: AtomicU64,
    limiters: Ways<Local>,
}

struct Local {
    limiter: RateLimiter<NotKeyed, InMemoryState, Since, NoOpMiddleware<Nanos>>,
    /// The most it ever lets in at once.
    burst: NonZeroU32,
    made: Instant,
    used: Instant,
}

impl Worth for Local {
    fn worth(&self) -> Instant {
        self.used
    }
}

/// Tokio's clock, which tests can stop.
#[derive(Debug, Clone)]
struct Since(Instant);

impl Clock for Since {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

impl Away {
    /// How many processes share the quotas, this one included, as far as is known.
    pub(super) fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed).max(1)
    }

    /// The store has answered a call that is made every now and then.
    pub(super) fn beats(&self, processes: usize) {
        let now = Instant::now();
        let since = *self.well_since.lock().get_or_insert(now);
        let away = self.away.load(Ordering::Acquire);
        if away && now - since < WELL {
            // Who was away for long is not counted any more until he has told that he is there, too.
            self.processes.fetch_max(processes as u64, Ordering::Relaxed);
            return;
        }
        self.processes.store(processes as u64, Ordering::Relaxed);
        if away {
            self.failures.store(0, Ordering::Relaxed);
            // What was let in here is not charged there, and the next outage starts from what is left then.
            self.limiters.retain(|_, _| false);
            self.away.store(false, Ordering::Release);
            tracing::info!("quotas are counted in the store again");
        }
    }

    pub(super) fn misses_a_beat(&self) {
        *self.well_since.lock() = None;
    }
}

impl Engine {
    /// Whether policies that can do without the store should.
    pub(super) fn is_away(&self) -> bool {
        self.away.away.load(Ordering::Acquire)
    }

    /// A charge was answered.
    pub(super) fn answers(&self) {
        if self.away.failures.load(Ordering::Relaxed) > 0 {
            self.away.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A charge was not answered.
    pub(super) fn fails(&self, error: &Error) {
        let before = self.away.failures.fetch_add(1, Ordering::Relaxed);
        let gone = error.kind() == ErrorKind::Unavailable || before + 1 >= FAILURES;
        // Without anybody to find out that it is back, each request has to.
        if gone && self.is_tended() && !self.away.away.swap(true, Ordering::AcqRel) {
            self.away.misses_a_beat();
            tracing::warn!(%error, "quotas are counted in this process alone: the store is away");
            self.wake();
        }
    }

    /// Decides by this process's share of the quota. A refusal says how long it lasts at least.
    pub(super) fn decide(&self, ask: &Ask, question: &Question) -> Result<(), Duration> {
        let now = Instant::now();
        let share = Share::of(question, self.away.processes());
        let seen = self.last_seen(ask, question);
        let make = || {
            let (limiter, burst) = (share.limiter(), share.burst);
            let local = Local { limiter, burst, made: now, used: now };
            if let Some(left) = seen.and_then(|seen| seen.left) {
                let mine = cells(left / self.away.processes());
                // What is spent already is spent here too.
                let _ = NonZeroU32::new(share.burst.get().saturating_sub(mine))
                    .map(|spent| local.limiter.check_n(spent));
            }
            local
        };
        let cost = NonZeroU32::new(cells(question.cost)).unwrap_or(NonZeroU32::MIN);
        let decided = self.away.limiters.enter(
            ask.spot(question),
            |_| true,
            &make,
            |local| {
                // The store has answered since: what was decided here before that says nothing any more.
                if seen.is_some_and(|seen| seen.sent > local.made) {
                    *local = make();
                }
                local.used = now;
                // No share is so small that the dearest request could never pass. It may be a share of
                // another day, when there were more processes.
                match local.limiter.check_n(cost.min(local.burst)) {
                    Ok(Ok(())) => Ok(()),
                    // It can't be: that is no more than its burst.
                    Err(_) => Err(share.period),
                    Ok(Err(until)) => {
                        let at = local.limiter.clock().now();
                        let wait = until.earliest_possible().duration_since(at).into();
                        Err(Duration::max(wait, Duration::from_millis(1)))
                    }
                }
            },
        );
        decided.unwrap_or(Ok(()))
    }
}

/// What one process may let in of a quota.
struct Share {
    burst: NonZeroU32,
    /// Between one request and the next.
    period: Duration,
}

impl Share {
    fn of(question: &Question, processes: u64) -> Self {
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

fn cells(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
