//! What is decided without the store, because it did not answer, or is known to be away.

use super::RateCheck;
use crate::{
    error::Error, key::Key, outage::RateLimitOutage, rate_limit::engine::check_request::CheckGroup,
};

impl RateCheck<'_> {
    /// Errors of the store are decided by the policies it was asked about.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn decide_without_store(
        &mut self,
        group: &CheckGroup<'_>,
        error: Error,
    ) -> Result<bool, Error> {
        let (tag, members) = group;
        let outage = |at: &usize| self.request.checks[*at].policy.outage();
        self.engine.record_charge_failure(self.store, tag, &error);
        if self.mark_cached_refusals() {
            return Ok(false);
        }
        if members.iter().any(|at| outage(at) == RateLimitOutage::Refuse) {
            return Err(error);
        }
        crate::throttle::throttled!(warn, %error, "quota decided without the store");
        let local: Vec<_> =
            members.iter().copied().filter(|at| outage(at) == RateLimitOutage::Local).collect();
        Ok(self.decide_locally(local.into_iter()))
    }

    /// Whether a policy is known to refuse. It was asked nevertheless, for the sake of those that may be named as well.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn mark_cached_refusals(&mut self) -> bool {
        let mut refused = false;
        for (at, question) in self.request.enforced_checks() {
            let Some(told) = self.engine.certain_refusal(self.request, question) else { continue };
            let each = &mut self.policies[at];
            (each.reading, each.violated, refused) = (Some(told), true, true);
        }
        refused
    }

    /// Whether all of these are decided here, as their part of the store is away.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn is_decided_locally(&self, tag: &Key, members: &[usize]) -> bool {
        let is_local =
            |at: &usize| self.request.checks[*at].policy.outage() == RateLimitOutage::Local;
        self.engine.is_store_unavailable(self.store, tag) && members.iter().all(is_local)
    }

    /// Decides without the store.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn decide_locally(&mut self, members: impl Iterator<Item = usize>) -> bool {
        self.decided_locally = true;
        let mut admitted = true;
        for at in members {
            let question = &self.request.checks[at];
            if let Err(told) = self.engine.decide_locally(self.request, question) {
                let each = &mut self.policies[at];
                (each.reading, each.violated, admitted) = (Some(told), true, false);
            }
        }
        admitted
    }
}
