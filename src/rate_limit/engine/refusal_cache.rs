//! Refusal cache: the last answers of the store, by counter. Refusals are repeated without a call;
//! the remaining units are the start of the outage limiter.
//!
//! A refusal lasts for the time that the store has given, counted from before the call was sent.
//! The store's clock is ahead by then, so the repetition is exact unless units are refunded sooner.
//! If they may be, the refusal is cached for a short time only. A refusal of one cost says nothing
//! about lower costs; a higher cost waits at least as long.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    RateLimitEngine,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{BorrowedCounterId, CounterState},
    rate_check::ChargeAnswer,
};
use crate::{
    rate_limit::decision::{Decision, PolicyDecision, QuotaReading},
    store::QuotaSnapshot,
};

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
    fn empty(sent: Instant) -> Self {
        Self {
            sent_at: sent,
            remaining: 0,
            reset_at: sent,
            full_at: sent,
            refusal: None,
            invalid_before: None,
        }
    }

    /// Drops the refusal, and ignores answers to calls sent before `now`.
    fn invalidate(&mut self, now: Instant) {
        (self.refusal, self.invalid_before) = (None, Some(now));
    }

    /// Sets the remaining units, unless those of a later call are known.
    fn update(&mut self, sent: Instant, state: &QuotaSnapshot) {
        if self.sent_at <= sent {
            (self.sent_at, self.remaining) = (sent, state.remaining);
            self.reset_at = add_capped(Instant::now(), state.reset_after);
            self.full_at = add_capped(sent, state.full_after);
        }
    }

    /// Returns the reading for a request of this cost, or `None` if it has expired.
    fn reading(&self, cost: u64, now: Instant) -> Option<QuotaReading> {
        let refusal = self.refusal_for(cost, now);
        let retry = refusal.map_or(Duration::ZERO, |refusal| refusal.admitted_at - now);
        let reset = self.reset_at.saturating_duration_since(now);
        let reset = if retry.is_zero() { reset } else { reset.min(retry).max(MIN_RESET) };
        let told =
            QuotaReading { remaining: self.remaining, reset_after: reset, retry_after: retry };
        (!reset.is_zero()).then_some(told)
    }

    fn refusal_for(&self, cost: u64, now: Instant) -> Option<CachedRefusal> {
        self.refusal.filter(|refusal| refusal.applies_to(cost) && now < refusal.cached_until)
    }

    /// Returns true if the store may still refuse, although the refusal is not repeated any more.
    fn may_refuse(&self, cost: u64, now: Instant) -> bool {
        let lapsed =
            |refusal: CachedRefusal| refusal.cached_until <= now && now < refusal.admitted_at;
        self.refusal.is_some_and(|refusal| refusal.applies_to(cost) && lapsed(refusal))
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
pub(super) fn add_capped(moment: Instant, time: Duration) -> Instant {
    moment + time.min(crate::clock::MAX_DURATION)
}

impl RateLimitEngine {
    /// Records an answer of the store. An admission counts too: it says how long the next request
    /// has to wait.
    pub(super) fn record_answer(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
        answer: &ChargeAnswer,
        state: &QuotaSnapshot,
        given_back: bool,
    ) {
        let (sent, most) = (answer.sent_at, question.max_refusal_ttl(given_back));
        // The store has run the call between `sent` and now. Refusals count from `sent`, so that
        // none lasts too long. Reported times count from now, so that none is too short.
        let heard = Instant::now();
        // Each refusal counts towards a penalty, so the store must see all of them until it blocks
        // the key.
        let counted = question.policy.penalty_rule().is_some() && state.blocked_for.is_none();
        let lasts = !state.retry_after.is_zero() && state.retry_after < Duration::MAX;
        let keep = lasts && !counted && !self.has_manual_clock();
        let refused = keep.then(|| CachedRefusal {
            cost: ask.total_cost(question),
            // Every cost waits for the end of the window.
            covers_higher_costs: question.quota.is_fixed_window() && state.blocked_for.is_none(),
            // The store is asked again when the block ends.
            cached_until: add_capped(
                sent,
                state.retry_after.min(most).min(state.blocked_for.unwrap_or(most)),
            ),
            admitted_at: add_capped(heard, state.retry_after),
        });
        self.refusal_cache.with_or_insert(
            ask.counter_ref(question),
            || RefusalCacheEntry::empty(sent),
            |known| {
                if known.sent_at > sent || known.invalid_before.is_some_and(|moment| sent < moment)
                {
                    return;
                }
                *known = RefusalCacheEntry {
                    sent_at: sent,
                    remaining: state.remaining,
                    reset_at: add_capped(heard, state.reset_after),
                    full_at: add_capped(sent, state.full_after),
                    // A refusal of a lower cost is dropped: units were spent since, so its wait is
                    // too short.
                    refusal: refused,
                    invalid_before: known.invalid_before,
                };
            },
        );
    }

    /// Records the remaining units after the refill of a lease. A request refused before may have a
    /// unit now, so the refusal is dropped as by [`invalidate_counter`](Self::invalidate_counter).
    pub(super) fn record_lease_refill(
        &self,
        spot: BorrowedCounterId<'_>,
        sent: Instant,
        state: &QuotaSnapshot,
    ) {
        let rest = |known: &mut RefusalCacheEntry| {
            known.invalidate(Instant::now());
            known.update(sent, state);
        };
        self.refusal_cache.with_or_insert(spot, || RefusalCacheEntry::empty(sent), rest);
    }

    /// Records the remaining units after an adjustment. Refusals stay.
    pub(super) fn record_settled(
        &self,
        spot: BorrowedCounterId<'_>,
        sent: Instant,
        state: &QuotaSnapshot,
    ) {
        let changed = |known: &mut RefusalCacheEntry| {
            if known.invalid_before.is_none_or(|moment| moment <= sent) {
                known.update(sent, state);
            }
        };
        self.refusal_cache.with(spot, changed);
    }

    /// Adds refunded units to the remaining units.
    pub(super) fn record_refund(&self, spot: BorrowedCounterId<'_>, units: u64) {
        let most = spot.quota.capacity();
        let back = |known: &mut RefusalCacheEntry| {
            known.remaining = known.remaining.saturating_add(units).min(most);
        };
        self.refusal_cache.with(spot, back);
    }

    /// Drops the refusal of this counter, because more units are available from now on.
    pub(super) fn invalidate_counter(&self, spot: BorrowedCounterId<'_>) {
        let now = Instant::now();
        self.refusal_cache.with_or_insert(
            spot,
            || RefusalCacheEntry::empty(now),
            |known| known.invalidate(now),
        );
    }

    /// Drops the refusals of this counter under all quotas.
    pub(super) fn invalidate_all_quotas(&self, spot: BorrowedCounterId<'_>) {
        let now = Instant::now();
        self.refusal_cache.for_each_quota(spot, |known| known.invalidate(now));
        self.invalidate_counter(spot);
    }

    /// Returns the refusal of the whole request, if it needs no call.
    pub(in crate::rate_limit) fn cached_refusal(&self, ask: &CheckRequest) -> Option<Decision> {
        let now = Instant::now();
        let each = match &ask.checks[..] {
            // The common case needs a single lookup.
            [question] if question.is_enforced() => {
                let told = self
                    .cached_reading(ask, question, now)
                    .filter(|told| !told.retry_after.is_zero())?;
                self.is_certainly_refused(ask, question, Some(told))?
                    .then(|| smallvec::smallvec![cached_policy_decision(question, Some(told))])?
            }
            questions => {
                let mut refused = false;
                for (_, question) in ask.enforced_checks() {
                    refused |= self.is_certainly_refused(
                        ask,
                        question,
                        self.cached_reading(ask, question, now),
                    )?;
                    // This policy may have a longer wait than those with a cached refusal.
                    if self.may_still_refuse(ask, question, now) {
                        return None;
                    }
                }
                let recall = |question: &PolicyCheck| {
                    let told = question
                        .is_enforced()
                        .then(|| self.cached_reading(ask, question, now))
                        .flatten();
                    // The store does not count leased units as remaining.
                    let leased = question
                        .lease_size()
                        .map_or(0, |_| self.leased_units(ask.counter_ref(question)));
                    let told = told
                        .map(|told| QuotaReading { remaining: told.remaining + leased, ..told });
                    cached_policy_decision(question, told)
                };
                refused.then(|| questions.iter().map(recall).collect())?
            }
        };
        Some(Decision { admitted: false, decided_locally: false, policies: each })
    }

    /// Returns the reading of a check that the cache refuses.
    pub(super) fn certain_refusal(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> Option<QuotaReading> {
        let told = self.cached_reading(ask, question, Instant::now());
        told.filter(|_| self.is_certainly_refused(ask, question, told) == Some(true))
    }

    /// Returns true if the cache refuses the check. `None` means that the store has to be asked,
    /// even if another policy refuses.
    fn is_certainly_refused(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
        told: Option<QuotaReading>,
    ) -> Option<bool> {
        let refused = told.is_some_and(|told| !told.retry_after.is_zero());
        // The check may have to be refused permanently, or its refusal counted towards a penalty.
        if question.exceeds_capacity() || (!refused && question.policy.penalty_rule().is_some()) {
            return None;
        }
        Some(
            refused
                && (question.lease_size().is_none()
                    || !self.has_leased_units(ask.counter_ref(question))),
        )
    }

    fn may_still_refuse(&self, ask: &CheckRequest, question: &PolicyCheck, now: Instant) -> bool {
        let cost = ask.total_cost(question);
        self.refusal_cache
            .with(ask.counter_ref(question), |known| known.may_refuse(cost, now))
            .unwrap_or(false)
    }

    /// Returns the cached reading of a check.
    fn cached_reading(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
        now: Instant,
    ) -> Option<QuotaReading> {
        let cost = ask.total_cost(question);
        self.refusal_cache
            .with(ask.counter_ref(question), |known| known.reading(cost, now))
            .flatten()
    }

    /// Returns the last known remaining units of a check's quota, leased ones included, and the
    /// time until there are more. The check's cost does not matter.
    pub(super) fn last_known_remaining(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> (u64, Duration) {
        let (spot, quota, now) = (ask.counter_ref(question), question.quota, Instant::now());
        let left = |known: &mut RefusalCacheEntry| {
            let reset = known.reset_at.saturating_duration_since(now);
            (known.full_at > now).then_some((known.remaining, reset))
        };
        // The store reports the same for an unused key.
        let whole = if quota.is_fixed_window() { quota.window() } else { Duration::ZERO };
        let known = self.refusal_cache.with(spot, left).flatten();
        let (remaining, reset) = known.unwrap_or((quota.capacity(), whole));
        (remaining.saturating_add(self.leased_units(spot)).min(quota.capacity()), reset)
    }

    /// Returns the store's last answer, if it counted any usage.
    pub(super) fn last_reading(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> Option<LastReading> {
        let now = Instant::now();
        let seen = |known: &mut RefusalCacheEntry| {
            let left = (known.full_at > now).then_some(known.remaining);
            // An entry that was created by an invalidation holds no answer.
            (known.full_at > known.sent_at)
                .then_some(LastReading { sent_at: known.sent_at, remaining: left })
        };
        self.refusal_cache.with(ask.counter_ref(question), seen).flatten()
    }
}

fn cached_policy_decision(question: &PolicyCheck, told: Option<QuotaReading>) -> PolicyDecision {
    let violated = told.is_some_and(|told| !told.retry_after.is_zero());
    PolicyDecision {
        reading: told,
        violated,
        ..PolicyDecision::new(&question.policy, question.quota)
    }
}

/// Reported reset time of a window that ends right now.
const MIN_RESET: Duration = Duration::from_millis(1);
