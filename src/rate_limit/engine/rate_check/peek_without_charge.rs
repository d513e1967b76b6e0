//! Decision that a check would have, read from the store without a charge.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::RateCheck;
use crate::{
    error::Error,
    rate_limit::{
        decision::Decision,
        engine::{
            RateLimitEngine,
            check_request::{CheckRequest, PolicyCheck},
        },
    },
    store::Store,
};

impl RateLimitEngine {
    /// Returns the decision that `check` would make now. Charges nothing, and asks the store even
    /// if a refusal is cached.
    pub(in crate::rate_limit) async fn peek(
        self: &Arc<Self>,
        store: &Store,
        request: &CheckRequest,
    ) -> Result<Decision, Error> {
        let mut rate_check = RateCheck::new(self, store, request);
        if rate_check.mark_too_costly() {
            let RateCheck { decisions, .. } = rate_check;
            return Ok(Decision { admitted: false, decided_locally: false, policies: decisions });
        }
        // A check of cost 0 reads the remaining units and the block of its key. A quota of 0 has no
        // counter.
        for (decision, check) in rate_check.decisions.iter_mut().zip(&request.checks) {
            if check.quota.is_zero() {
                (decision.reading, decision.violated) =
                    (Some(check.zero_quota_reading()), check.cost > 0);
            }
        }
        let is_counted = |q: &PolicyCheck| !q.quota.is_unlimited() && !q.quota.is_zero();
        let counted_checks = request.checks.iter().enumerate().filter(|(_, q)| is_counted(q));
        let groups = request.group_by_tag(counted_checks.map(|(index, _)| index));
        let answers = join_all(groups.iter().map(|group| rate_check.call_store(group, 0))).await;
        for (group, answer) in groups.iter().zip(answers) {
            rate_check.record_states(&group.check_indices, &answer?, true);
        }
        rate_check.add_leased_units();
        let RateCheck { decisions, .. } = rate_check;
        let admitted =
            !decisions.iter().any(|decision| decision.violated && !decision.policy.is_shadow());
        Ok(Decision { admitted, decided_locally: false, policies: decisions })
    }
}

impl RateCheck<'_> {
    /// Adds the units leased by this process: they admit its requests, whatever the store has left.
    fn add_leased_units(&mut self) {
        for (decision, check) in self.decisions.iter_mut().zip(&self.request.checks) {
            if check.cost > 0 && check.lease_size().is_none() {
                continue;
            }
            let units = self.engine.leased_units(self.request.borrowed_counter_id(check));
            if let (1.., Some(reading)) = (units, &mut decision.reading) {
                (reading.remaining, reading.retry_after, decision.violated) =
                    (reading.remaining + units, Duration::ZERO, false);
            }
        }
    }
}
