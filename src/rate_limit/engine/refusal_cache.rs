//! Refusal cache: the last answers of the store, by counter. Refusals are repeated without a call;
//! the remaining units are the start of the outage limiter.
//!
//! A refusal lasts for the time that the store has given, counted from before the call was sent.
//! The store's clock is ahead by then, so the repetition is exact unless units are refunded sooner.
//! If they may be, the refusal is cached for a short time only. A refusal of one cost says nothing
//! about lower costs; a higher cost waits at least as long.

mod cache_lookups;

use std::time::Duration;

use tokio::time::Instant;

use super::{
    RateLimitEngine,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{BorrowedCounterId, CounterState},
    rate_check::ChargeAnswer,
};
use crate::{rate_limit::decision::QuotaReading, store::QuotaSnapshot};

/// Last answer of the store about a counter under one quota, and the refusal that it caused.
#[derive(Debug)]
pub(super) struct RefusalCacheEntry {
    /// Time at which the call was sent.
    sent_at: Instant,
    remaining: u64,
    reset_at: Instant,
    /// Time at which the whole quota is available again, if nothing more is charged.
    full_at: Instant,
    refusal: Option<CachedRefusal>,
    /// Answers to calls sent before this time are ignored.
    invalid_before: Option<Instant>,
}

/// Last answer of the store about a counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastReading {
    /// Time at which the call was sent.
    pub(super) sent_at: Instant,
    /// The remaining units, unless the quota is full again by now.
    pub(super) remaining: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct CachedRefusal {
    cost: u64,
    /// True if higher costs have the same wait.
    covers_higher_costs: bool,
    /// End of the repetition.
    cached_until: Instant,
    /// Time at which the store will admit the request.
    admitted_at: Instant,
}

impl RefusalCacheEntry {
    fn empty(sent_at: Instant) -> Self {
        Self {
            sent_at,
            remaining: 0,
            reset_at: sent_at,
            full_at: sent_at,
            refusal: None,
            invalid_before: None,
        }
    }

    /// Drops the refusal, and ignores answers to calls sent before `now`.
    fn invalidate(&mut self, now: Instant) {
        (self.refusal, self.invalid_before) = (None, Some(now));
    }

    /// Sets the remaining units, unless those of a later call are known.
    fn update(&mut self, sent_at: Instant, state: &QuotaSnapshot) {
        if self.sent_at <= sent_at {
            (self.sent_at, self.remaining) = (sent_at, state.remaining);
            self.reset_at = add_capped(Instant::now(), state.reset_after);
            self.full_at = add_capped(sent_at, state.full_after);
        }
    }

    /// Returns the reading for a request of this cost, or `None` if it has expired.
    fn reading(&self, cost: u64, now: Instant) -> Option<QuotaReading> {
        let refusal = self.refusal_for(cost, now);
        let retry_after = refusal.map_or(Duration::ZERO, |refusal| refusal.admitted_at - now);
        let reset_after = self.reset_at.saturating_duration_since(now);
        let reset_after = if retry_after.is_zero() {
            reset_after
        } else {
            reset_after.min(retry_after).max(MIN_RESET)
        };
        let reading = QuotaReading { remaining: self.remaining, reset_after, retry_after };
        (!reset_after.is_zero()).then_some(reading)
    }

    fn refusal_for(&self, cost: u64, now: Instant) -> Option<CachedRefusal> {
        self.refusal.filter(|refusal| refusal.applies_to(cost) && now < refusal.cached_until)
    }

    /// Returns true if the store may still refuse, although the refusal is not repeated any more.
    fn may_refuse(&self, cost: u64, now: Instant) -> bool {
        let has_lapsed =
            |refusal: CachedRefusal| refusal.cached_until <= now && now < refusal.admitted_at;
        self.refusal.is_some_and(|refusal| refusal.applies_to(cost) && has_lapsed(refusal))
    }
}

impl CachedRefusal {
    fn applies_to(self, cost: u64) -> bool {
        self.cost == cost || (self.covers_higher_costs && cost > self.cost)
    }
}

impl CounterState for RefusalCacheEntry {
    /// A reset applies to the counter, under all quotas.
    fn inherit(&mut self, other: &Self) {
        self.invalid_before = self.invalid_before.max(other.invalid_before);
    }
}

/// Adds a time, at most `MAX_DURATION`: the distinction between later instants does not matter.
pub(super) fn add_capped(instant: Instant, duration: Duration) -> Instant {
    instant + duration.min(crate::durations::MAX_DURATION)
}

impl RateLimitEngine {
    /// Records an answer of the store. An admission counts too: it says how long the next request
    /// has to wait.
    pub(super) fn record_answer(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
        answer: &ChargeAnswer,
        state: &QuotaSnapshot,
        may_be_refunded: bool,
    ) {
        let sent_at = answer.sent_at;
        // The store has run the call between `sent_at` and now. Refusals count from `sent_at`, so
        // that none lasts too long. Reported times count from now, so that none is too short.
        let received_at = Instant::now();
        let max_ttl = check.max_refusal_ttl(may_be_refunded);
        let refusal = self.is_refusal_cacheable(check, state).then(|| CachedRefusal {
            cost: request.total_cost(check),
            // Every cost waits for the end of the window.
            covers_higher_costs: check.quota.is_fixed_window() && state.blocked_for.is_none(),
            // The store is asked again when the block ends.
            cached_until: add_capped(
                sent_at,
                state.retry_after.min(max_ttl).min(state.blocked_for.unwrap_or(max_ttl)),
            ),
            admitted_at: add_capped(received_at, state.retry_after),
        });
        self.refusal_cache.with_or_insert(
            request.borrowed_counter_id(check),
            || RefusalCacheEntry::empty(sent_at),
            |entry| {
                let is_invalid = |invalid_before: Instant| sent_at < invalid_before;
                if entry.sent_at > sent_at || entry.invalid_before.is_some_and(is_invalid) {
                    return;
                }
                *entry = RefusalCacheEntry {
                    sent_at,
                    remaining: state.remaining,
                    reset_at: add_capped(received_at, state.reset_after),
                    full_at: add_capped(sent_at, state.full_after),
                    // A refusal of a lower cost is dropped: units were spent since, so its wait is
                    // too short.
                    refusal,
                    invalid_before: entry.invalid_before,
                };
            },
        );
    }

    /// Returns true if the next request has to wait, and may be told so without a call.
    fn is_refusal_cacheable(&self, check: &PolicyCheck, state: &QuotaSnapshot) -> bool {
        // Each refusal counts towards a penalty, so the store must see all of them until it blocks
        // the key.
        let counts_towards_penalty =
            check.policy.penalty_rule().is_some() && state.blocked_for.is_none();
        let ends_by_waiting = !state.retry_after.is_zero() && state.retry_after < Duration::MAX;
        ends_by_waiting && !counts_towards_penalty && !self.has_manual_clock()
    }

    /// Records the remaining units after the refill of a lease. A request refused before may have a
    /// unit now, so the refusal is dropped as by [`invalidate_counter`](Self::invalidate_counter).
    pub(super) fn record_lease_refill(
        &self,
        counter_id: BorrowedCounterId<'_>,
        sent_at: Instant,
        state: &QuotaSnapshot,
    ) {
        let replace = |entry: &mut RefusalCacheEntry| {
            entry.invalidate(Instant::now());
            entry.update(sent_at, state);
        };
        self.refusal_cache.with_or_insert(
            counter_id,
            || RefusalCacheEntry::empty(sent_at),
            replace,
        );
    }

    /// Records the remaining units after an adjustment. Refusals stay.
    pub(super) fn record_settled(
        &self,
        counter_id: BorrowedCounterId<'_>,
        sent_at: Instant,
        state: &QuotaSnapshot,
    ) {
        let update_entry = |entry: &mut RefusalCacheEntry| {
            if entry.invalid_before.is_none_or(|instant| instant <= sent_at) {
                entry.update(sent_at, state);
            }
        };
        self.refusal_cache.with(counter_id, update_entry);
    }

    /// Adds refunded units to the remaining units.
    pub(super) fn record_refund(&self, counter_id: BorrowedCounterId<'_>, units: u64) {
        let capacity = counter_id.quota.capacity();
        let add_units = |entry: &mut RefusalCacheEntry| {
            entry.remaining = entry.remaining.saturating_add(units).min(capacity);
        };
        self.refusal_cache.with(counter_id, add_units);
    }

    /// Drops the refusal of this counter, because more units are available from now on.
    pub(super) fn invalidate_counter(&self, counter_id: BorrowedCounterId<'_>) {
        let now = Instant::now();
        self.refusal_cache.with_or_insert(
            counter_id,
            || RefusalCacheEntry::empty(now),
            |entry| entry.invalidate(now),
        );
    }

    /// Drops all refusals.
    pub(super) fn invalidate_all_refusals(&self) {
        let now = Instant::now();
        self.refusal_cache.retain(|_, _, entry| {
            entry.invalidate(now);
            true
        });
    }

    /// Drops the refusals of this counter under all quotas.
    pub(super) fn invalidate_all_quotas(&self, counter_id: BorrowedCounterId<'_>) {
        let now = Instant::now();
        self.refusal_cache.for_each_quota(counter_id, |entry| entry.invalidate(now));
        self.invalidate_counter(counter_id);
    }
}

/// Reported reset time of a window that ends right now.
const MIN_RESET: Duration = Duration::from_millis(1);
