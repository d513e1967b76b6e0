//! What is decided without the store, because it did not answer, or is known to be away.

use super::Checking;
use crate::{error::Error, key::Key, outage::Outage, rate_limit::engine::ask::Group};

impl Checking<'_> {
    /// Errors of the store are decided by the policies it was asked about.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn without_store(&mut self, group: &Group<'_>, error: Error) -> Result<bool, Error> {
        let (tag, members) = group;
        let outage = |at: &usize| self.ask.questions[*at].policy.outage();
        self.engine.fails(self.store, tag, &error);
        if self.is_refused_still() {
            return Ok(false);
        }
        if members.iter().any(|at| outage(at) == Outage::Refuse) {
            return Err(error);
        }
        crate::throttle::throttled!(warn, %error, "quota decided without the store");
        let local: Vec<_> =
            members.iter().copied().filter(|at| outage(at) == Outage::Local).collect();
        Ok(self.alone(local.into_iter()))
    }

    /// Whether a policy is known to refuse. It was asked nevertheless, for the sake of those that may be named as well.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn is_refused_still(&mut self) -> bool {
        let mut refused = false;
        for (at, question) in self.ask.binding() {
            let Some(told) = self.engine.refusal(self.ask, question) else { continue };
            let each = &mut self.each[at];
            (each.told, each.violated, refused) = (Some(told), true, true);
        }
        refused
    }

    /// Whether all of these are decided here, as their part of the store is away.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn is_alone(&self, tag: &Key, members: &[usize]) -> bool {
        let is_local = |at: &usize| self.ask.questions[*at].policy.outage() == Outage::Local;
        self.engine.is_away(self.store, tag) && members.iter().all(is_local)
    }

    /// Decides without the store.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn alone(&mut self, members: impl Iterator<Item = usize>) -> bool {
        self.local = true;
        let mut admitted = true;
        for at in members {
            let question = &self.ask.questions[at];
            if let Err(told) = self.engine.decide(self.ask, question) {
                let each = &mut self.each[at];
                (each.told, each.violated, admitted) = (Some(told), true, false);
            }
        }
        admitted
    }
}
