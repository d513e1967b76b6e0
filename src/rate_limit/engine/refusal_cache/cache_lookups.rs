//! Lookups in the refusal cache: cached refusals, and the last known remaining units.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{LastReading, RefusalCacheEntry};
use crate::rate_limit::{
    decision::{Decision, PolicyDecision, QuotaReading},
    engine::{
        RateLimitEngine,
        check_request::{CheckRequest, PolicyCheck},
    },
};

impl RateLimitEngine {
    /// Returns the refusal of the whole request, if it needs no call.
    pub(in crate::rate_limit) fn cached_refusal(&self, request: &CheckRequest) -> Option<Decision> {
        let now = Instant::now();
        let decisions = match &request.checks[..] {
            // The common case needs a single lookup.
            [check] if check.is_enforced() => {
                let reading = self
                    .cached_reading(request, check, now)
                    .filter(|reading| !reading.retry_after.is_zero())?;
                self.is_certainly_refused(request, check, Some(reading))?
                    .then(|| smallvec::smallvec![cached_policy_decision(check, Some(reading))])?
            }
            _ => self.cached_refusal_of_all(request, now)?,
        };
        Some(Decision { admitted: false, decided_locally: false, policies: decisions })
    }

    /// Returns the decisions of all policies, if one refuses the request and none has to be asked.
    fn cached_refusal_of_all(
        &self,
        request: &CheckRequest,
        now: Instant,
    ) -> Option<SmallVec<[PolicyDecision; 1]>> {
        let mut is_refused = false;
        for (_, check) in request.enforced_checks() {
            is_refused |= self.is_certainly_refused(
                request,
                check,
                self.cached_reading(request, check, now),
            )?;
            // This policy may have a longer wait than those with a cached refusal.
            if self.may_still_refuse(request, check, now) {
                return None;
            }
        }
        let cached_decision = |check: &PolicyCheck| {
            let reading =
                check.is_enforced().then(|| self.cached_reading(request, check, now)).flatten();
            // The store does not count leased units as remaining.
            let leased_units = check
                .lease_size()
                .map_or(0, |_| self.leased_units(request.borrowed_counter_id(check)));
            let with_leased = |reading: QuotaReading| QuotaReading {
                remaining: reading.remaining + leased_units,
                ..reading
            };
            cached_policy_decision(check, reading.map(with_leased))
        };
        is_refused.then(|| request.checks.iter().map(cached_decision).collect())
    }

    /// Returns the reading of a check that the cache refuses.
    pub(in crate::rate_limit::engine) fn certain_refusal(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
    ) -> Option<QuotaReading> {
        let reading = self.cached_reading(request, check, Instant::now());
        reading.filter(|_| self.is_certainly_refused(request, check, reading) == Some(true))
    }

    /// Returns true if the cache refuses the check. `None` means that the store has to be asked,
    /// even if another policy refuses.
    fn is_certainly_refused(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
        reading: Option<QuotaReading>,
    ) -> Option<bool> {
        let is_refused = reading.is_some_and(|reading| !reading.retry_after.is_zero());
        // The check may have to be refused permanently, or its refusal counted towards a penalty.
        if check.exceeds_capacity() || (!is_refused && check.policy.penalty_rule().is_some()) {
            return None;
        }
        Some(
            is_refused
                && (check.lease_size().is_none()
                    || !self.has_leased_units(request.borrowed_counter_id(check))),
        )
    }

    fn may_still_refuse(&self, request: &CheckRequest, check: &PolicyCheck, now: Instant) -> bool {
        let cost = request.total_cost(check);
        self.refusal_cache
            .with(request.borrowed_counter_id(check), |entry| entry.may_refuse(cost, now))
            .unwrap_or(false)
    }

    /// Returns the cached reading of a check.
    fn cached_reading(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
        now: Instant,
    ) -> Option<QuotaReading> {
        let cost = request.total_cost(check);
        self.refusal_cache
            .with(request.borrowed_counter_id(check), |entry| entry.reading(cost, now))
            .flatten()
    }

    /// Returns the last known remaining units of a check's quota, leased ones included, and the
    /// time until there are more. The check's cost does not matter.
    pub(in crate::rate_limit::engine) fn last_known_remaining(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
    ) -> (u64, Duration) {
        let (counter_id, quota, now) =
            (request.borrowed_counter_id(check), check.quota, Instant::now());
        let remaining_and_reset = |entry: &mut RefusalCacheEntry| {
            let reset_after = entry.reset_at.saturating_duration_since(now);
            (entry.full_at > now).then_some((entry.remaining, reset_after))
        };
        // The store reports the same for an unused key.
        let default_reset = if quota.is_fixed_window() { quota.window() } else { Duration::ZERO };
        let last_known = self.refusal_cache.with(counter_id, remaining_and_reset).flatten();
        let (remaining, reset_after) = last_known.unwrap_or((quota.capacity(), default_reset));
        (remaining.saturating_add(self.leased_units(counter_id)).min(quota.capacity()), reset_after)
    }

    /// Returns the store's last answer, if it counted any usage.
    pub(in crate::rate_limit::engine) fn last_reading(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
    ) -> Option<LastReading> {
        let now = Instant::now();
        let last_reading = |entry: &mut RefusalCacheEntry| {
            let remaining = (entry.full_at > now).then_some(entry.remaining);
            // An entry that was created by an invalidation holds no answer.
            (entry.full_at > entry.sent_at)
                .then_some(LastReading { sent_at: entry.sent_at, remaining })
        };
        self.refusal_cache.with(request.borrowed_counter_id(check), last_reading).flatten()
    }
}

fn cached_policy_decision(check: &PolicyCheck, reading: Option<QuotaReading>) -> PolicyDecision {
    let violated = reading.is_some_and(|reading| !reading.retry_after.is_zero());
    PolicyDecision { reading, violated, ..PolicyDecision::new(&check.policy, check.quota) }
}
