//! What the store has said of late: refusals, to be repeated without asking, and what was left of the
//! others, to begin with if the store goes away.
//!
//! A refusal is good until the moment the store named, counted from before it was asked: at that moment
//! its own clock has come further. So repeating it is exact, unless something gives quota back sooner; what
//! may do so makes it unsteady, and then it is repeated for a short time only. Refusing a cost says
//! nothing of lesser ones, and of greater ones no more than that they have to wait longer still.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    RateLimitEngine,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{CounterRef, CounterState},
    rate_check::ChargeAnswer,
};
use crate::{
    rate_limit::decision::{Decision, PolicyDecision, QuotaReading},
    store::QuotaSnapshot,
};

#[derive(Debug)]
pub(super) struct RefusalCacheEntry {
    /// When the call was sent that said so.
    sent_at: Instant,
    remaining: u64,
    reset_at: Instant,
    /// When all of it will be there, whatever is charged no more.
    full_at: Instant,
    refusal: Option<CachedRefusal>,
    /// What was said in answer to calls sent before is void.
    invalid_before: Option<Instant>,
}

/// An answer of the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastReading {
    /// When it was asked for.
    pub(super) sent_at: Instant,
    /// What was left, if that is worth anything still.
    pub(super) remaining: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct CachedRefusal {
    cost: u64,
    /// Whoever costs more has to wait as long, and not longer.
    covers_higher_costs: bool,
    /// To be repeated until then.
    cached_until: Instant,
    /// When the store will let it in.
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

    /// What was said in answer to calls sent before this is worth nothing.
    fn invalidate(&mut self, now: Instant) {
        (self.refusal, self.invalid_before) = (None, Some(now));
    }

    /// What is left, if nothing newer is known of that.
    fn update(&mut self, sent: Instant, state: &QuotaSnapshot) {
        if self.sent_at <= sent {
            (self.sent_at, self.remaining) = (sent, state.remaining);
            self.reset_at = add_capped(Instant::now(), state.reset_after);
            self.full_at = add_capped(sent, state.full_after);
        }
    }

    /// What is left to tell of it.
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

    /// Whether it may well be refused still, which is no longer repeated without asking.
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

/// A moment so far away that it need not be told apart from others.
pub(super) fn add_capped(moment: Instant, time: Duration) -> Instant {
    moment + time.min(crate::clock::MAX_DURATION)
}

impl RateLimitEngine {
    /// Notes what the store said: also whoever was let in knows how long the next one has to wait.
    pub(super) fn record_answer(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
        answer: &ChargeAnswer,
        state: &QuotaSnapshot,
        given_back: bool,
    ) {
        let (sent, most) = (answer.sent_at, question.max_refusal_ttl(given_back));
        // The store has run in between. Nobody is refused for longer than it said, nor told a time that is too short.
        let heard = Instant::now();
        // Each refusal counts towards a penalty, so the store has to see them all, until it blocks.
        let counted = question.policy.penalty_rule().is_some() && state.blocked_for.is_none();
        let lasts = !state.retry_after.is_zero() && state.retry_after < Duration::MAX;
        let keep = lasts && !counted && !self.has_manual_clock();
        let refused = keep.then(|| CachedRefusal {
            cost: ask.total_cost(question),
            // Until the window ends, whatever it costs.
            covers_higher_costs: question.quota.is_fixed_window() && state.blocked_for.is_none(),
            // And again when it blocks no more.
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
                    // Who was refused for less knows too little now: somebody has spent since.
                    refusal: refused,
                    invalid_before: known.invalid_before,
                };
            },
        );
    }

    /// A lease was filled: this is what the store has left beside it. Whoever was refused before may have a unit now, so
    /// that is void, as by [`invalidate_counter`](Self::invalidate_counter).
    pub(super) fn record_lease_refill(
        &self,
        spot: CounterRef<'_>,
        sent: Instant,
        state: &QuotaSnapshot,
    ) {
        let rest = |known: &mut RefusalCacheEntry| {
            known.invalidate(Instant::now());
            known.update(sent, state);
        };
        self.refusal_cache.with_or_insert(spot, || RefusalCacheEntry::empty(sent), rest);
    }

    /// Charges were changed, and this is left. Who was refused before is as he was.
    pub(super) fn record_settled(
        &self,
        spot: CounterRef<'_>,
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

    /// So much of what was said to be spent is given back.
    pub(super) fn record_refund(&self, spot: CounterRef<'_>, units: u64) {
        let most = spot.quota.capacity();
        let back = |known: &mut RefusalCacheEntry| {
            known.remaining = known.remaining.saturating_add(units).min(most);
        };
        self.refusal_cache.with(spot, back);
    }

    /// The quota of this counter is larger than was said, from now on.
    pub(super) fn invalidate_counter(&self, spot: CounterRef<'_>) {
        let now = Instant::now();
        self.refusal_cache.with_or_insert(
            spot,
            || RefusalCacheEntry::empty(now),
            |known| known.invalidate(now),
        );
    }

    /// Nor is anything spent of it by any other quota.
    pub(super) fn invalidate_all_quotas(&self, spot: CounterRef<'_>) {
        let now = Instant::now();
        self.refusal_cache.for_each_quota(spot, |known| known.invalidate(now));
        self.invalidate_counter(spot);
    }

    /// The refusal of all of this, if it need not be asked for.
    pub(in crate::rate_limit) fn cached_refusal(&self, ask: &CheckRequest) -> Option<Decision> {
        let now = Instant::now();
        let each = match &ask.checks[..] {
            // One look is enough for most.
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
                    // It may have to be waited for longer than those that refuse for sure.
                    if self.may_still_refuse(ask, question, now) {
                        return None;
                    }
                }
                let recall = |question: &PolicyCheck| {
                    let told = question
                        .is_enforced()
                        .then(|| self.cached_reading(ask, question, now))
                        .flatten();
                    // What is left of a lease is not known of the store.
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

    /// What is told of a question that is refused for sure, by what is known.
    pub(super) fn certain_refusal(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> Option<QuotaReading> {
        let told = self.cached_reading(ask, question, Instant::now());
        told.filter(|_| self.is_certainly_refused(ask, question, told) == Some(true))
    }

    /// Whether what is known refuses the question. `None`: the store has to be asked, whoever else refuses.
    fn is_certainly_refused(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
        told: Option<QuotaReading>,
    ) -> Option<bool> {
        let refused = told.is_some_and(|told| !told.retry_after.is_zero());
        // It might be its turn to say that no waiting helps, or to count this refusal.
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

    /// What is left to tell of a question.
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

    /// What is left of a question's quota, and until there is more, as far as is known: what it costs does not matter.
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
        // As the store tells of a key that has spent nothing.
        let whole = if quota.is_fixed_window() { quota.window() } else { Duration::ZERO };
        let known = self.refusal_cache.with(spot, left).flatten();
        let (remaining, reset) = known.unwrap_or((quota.capacity(), whole));
        (remaining.saturating_add(self.leased_units(spot)).min(quota.capacity()), reset)
    }

    /// What the store has said last, if anything was spent by then.
    pub(super) fn last_reading(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> Option<LastReading> {
        let now = Instant::now();
        let seen = |known: &mut RefusalCacheEntry| {
            let left = (known.full_at > now).then_some(known.remaining);
            // A place that was made to forget something has heard of nothing.
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

/// What is told of a window that ends this instant.
const MIN_RESET: Duration = Duration::from_millis(1);
