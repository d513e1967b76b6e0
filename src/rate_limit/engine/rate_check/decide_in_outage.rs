//! Decisions without the store, because a call has failed or its shard is unavailable.

use super::RateCheck;
use crate::{
    error::Error, key::Key, outage::RateLimitOutage, rate_limit::engine::check_request::CheckGroup,
};

impl RateCheck<'_> {
    /// Decides about a failed call by the outage settings of its policies.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) fn decide_in_outage(
        &mut self,
        group: &CheckGroup<'_>,
        error: Error,
    ) -> Result<bool, Error> {
        let CheckGroup { tag, check_indices } = group;
        let outage = |index: &usize| self.request.checks[*index].policy.outage();
        self.engine.record_charge_failure(self.store, tag, &error);
        if self.mark_cached_refusals() {
            return Ok(false);
        }
        if check_indices.iter().any(|index| outage(index) == RateLimitOutage::Refuse) {
            return Err(error);
        }
        crate::throttle::throttled!(warn, %error, "quota decided without the store");
        let is_local = |index: &usize| outage(index) == RateLimitOutage::Local;
        let local_indices: Vec<_> = check_indices.iter().copied().filter(is_local).collect();
        Ok(self.decide_locally(local_indices.into_iter()))
    }

    /// Marks the policies with a cached refusal. Returns true if there is one. Such policies are
    /// asked if another policy might refuse as well and has to be reported.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn mark_cached_refusals(&mut self) -> bool {
        let mut is_refused = false;
        for (index, check) in self.request.enforced_checks() {
            let Some(reading) = self.engine.certain_refusal(self.request, check) else { continue };
            let decision = &mut self.decisions[index];
            (decision.reading, decision.violated, is_refused) = (Some(reading), true, true);
        }
        is_refused
    }

    /// Returns true if all of these checks are decided in this process, since their shard is
    /// unavailable.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) fn is_decided_locally(&self, tag: &Key, check_indices: &[usize]) -> bool {
        let is_local =
            |index: &usize| self.request.checks[*index].policy.outage() == RateLimitOutage::Local;
        self.engine.is_store_unavailable(self.store, tag) && check_indices.iter().all(is_local)
    }

    /// Decides in this process. Returns true if all of these checks are admitted.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) fn decide_locally(&mut self, check_indices: impl Iterator<Item = usize>) -> bool {
        self.decided_locally = true;
        let mut admitted = true;
        for index in check_indices {
            let check = &self.request.checks[index];
            if let Err(reading) = self.engine.decide_locally(self.request, check) {
                let decision = &mut self.decisions[index];
                (decision.reading, decision.violated, admitted) = (Some(reading), true, false);
            }
        }
        admitted
    }
}
