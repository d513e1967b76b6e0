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

    /// Marks the policies with a cached refusal. Returns true if there is one. Such policies are
    /// asked if another policy might refuse as well and has to be reported.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
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

    /// Returns true if all of these checks are decided in this process, since their shard is
    /// unavailable.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) fn is_decided_locally(&self, tag: &Key, members: &[usize]) -> bool {
        let is_local =
            |at: &usize| self.request.checks[*at].policy.outage() == RateLimitOutage::Local;
        self.engine.is_store_unavailable(self.store, tag) && members.iter().all(is_local)
    }

    /// Decides in this process. Returns true if all of these checks are admitted.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
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
