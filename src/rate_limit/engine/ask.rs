//! What is asked of the engine.

use std::{sync::Arc, time::Duration};

use smallvec::{SmallVec, smallvec};

use super::counter_map::Spot;
use crate::{
    key::Key,
    rate_limit::{decision::Told, policy::Policy, quota::Quota},
    store::{AdjustmentKind, CounterName, ChargeItem, ChargeAdjustment},
};

/// For how long a refusal is remembered that may end sooner than the store said.
const BRIEFLY: Duration = Duration::from_millis(100);

/// One policy, and for whom.
#[derive(Debug, Clone)]
pub(in crate::rate_limit) struct Question {
    pub(in crate::rate_limit) policy: Arc<Policy>,
    pub(in crate::rate_limit) key: Key,
    /// The policy's own, or that of this request.
    pub(in crate::rate_limit) quota: Quota,
    pub(in crate::rate_limit) cost: u64,
    /// Which of its layer's policies it is about.
    pub(in crate::rate_limit) place: usize,
    /// Its refusals may end sooner than the store says: charges are given back, or the quota changes.
    pub(in crate::rate_limit) unsteady: bool,
}

/// All that is asked at once: let in by all, or charged to none.
#[derive(Debug, Clone, Default)]
pub(in crate::rate_limit) struct Ask {
    pub(in crate::rate_limit) questions: SmallVec<[Question; 1]>,
    /// Under which all of them are counted together.
    pub(in crate::rate_limit) group: Option<Key>,
}

/// Questions of one tag, by their places.
pub(super) type Group<'a> = (&'a Key, SmallVec<[usize; 2]>);
pub(super) type Groups<'a> = SmallVec<[Group<'a>; 1]>;

impl Question {
    pub(in crate::rate_limit) fn new(policy: &Arc<Policy>, key: Key, cost: u64) -> Self {
        let (policy, quota) = (Arc::clone(policy), policy.quota());
        Self { policy, key, quota, cost, place: 0, unsteady: false }
    }

    /// Whether there is anything to be charged.
    pub(in crate::rate_limit) fn counts(&self) -> bool {
        self.cost > 0 && !self.quota.is_unlimited()
    }

    /// Whether it can keep the request out.
    pub(in crate::rate_limit) fn binds(&self) -> bool {
        self.counts() && !self.policy.is_shadow()
    }

    pub(super) fn is_too_dear(&self) -> bool {
        self.counts() && self.cost > self.quota.capacity()
    }

    /// What a quota of 0 says.
    pub(super) fn told_of_zero(&self) -> Told {
        let reset = self.quota.window();
        Told { remaining: 0, reset, retry: if self.cost > 0 { reset } else { Duration::ZERO } }
    }

    /// Whether it is charged in advance; by how much at once.
    pub(super) fn leased(&self) -> Option<u32> {
        Some(self.policy.leased(self.quota)).filter(|n| *n > 1 && self.cost == 1 && self.binds())
    }

    /// The longest time for which a refusal is remembered. `given_back`: the engine itself may give back
    /// what it has charged here.
    pub(super) fn remembered(&self, given_back: bool) -> Duration {
        // What others have leased may be given back, too, whatever this one costs.
        let leases = self.policy.leased(self.quota) > 1;
        let unsteady = self.unsteady || given_back || leases;
        let usual = if unsteady { BRIEFLY } else { Duration::MAX };
        self.policy.remembered().unwrap_or(usual)
    }

    /// Whether both are about one counter, if they are of one ask.
    pub(super) fn shares_counter(&self, other: &Self) -> bool {
        let kind = |each: &Self| each.quota.rule().map(|rule| rule.algorithm());
        self.key == other.key
            && self.policy.counter() == other.policy.counter()
            && kind(self) == kind(other)
    }

    pub(super) fn item(&self) -> Option<ChargeItem> {
        Some(ChargeItem {
            policy: Arc::clone(self.policy.counter()),
            subject: self.key.clone(),
            rule: self.quota.rule()?,
            cost: self.cost,
            penalty: self.policy.penalised(),
        })
    }

    pub(super) fn counter(&self) -> Option<CounterName> {
        let (policy, subject) = (Arc::clone(self.policy.counter()), self.key.clone());
        Some(CounterName { policy, subject, algorithm: self.quota.rule()?.algorithm() })
    }

    /// A change of what was charged.
    pub(super) fn settled(&self, by: AdjustmentKind) -> Option<ChargeAdjustment> {
        let (policy, subject) = (Arc::clone(self.policy.counter()), self.key.clone());
        Some(ChargeAdjustment::new(policy, subject, self.quota.rule()?, by))
    }
}

impl Ask {
    /// What decides where a question's counter is.
    pub(super) fn tag<'a>(&'a self, question: &'a Question) -> &'a Key {
        self.group.as_ref().unwrap_or(&question.key)
    }

    pub(super) fn spot<'a>(&'a self, question: &'a Question) -> Spot<'a> {
        Spot {
            policy: question.policy.counter(),
            tag: self.tag(question),
            subject: &question.key,
            quota: question.quota,
        }
    }

    /// What is charged to the question's counter in all: two questions may be about one.
    pub(super) fn charged(&self, question: &Question) -> u64 {
        let same = |other: &&Question| other.shares_counter(question);
        match &self.questions[..] {
            [_] => question.cost,
            all => {
                all.iter().filter(same).fold(0, |sum: u64, other| sum.saturating_add(other.cost))
            }
        }
    }

    /// These questions by their tags, in the order of their first.
    #[expect(clippy::indexing_slicing, reason = "places are those of its own questions")]
    pub(super) fn groups(&self, members: impl Iterator<Item = usize>) -> Groups<'_> {
        let mut groups = Groups::new();
        for at in members {
            let tag = self.tag(&self.questions[at]);
            match groups.iter_mut().find(|group| group.0 == tag) {
                Some(group) => group.1.push(at),
                None => groups.push((tag, smallvec![at])),
            }
        }
        groups
    }

    /// The one question that there is, if it binds and is to be asked of the store: the usual case.
    pub(super) fn only(&self) -> Option<&Question> {
        match &self.questions[..] {
            [question] if question.binds() && question.leased().is_none() => Some(question),
            _ => None,
        }
    }

    /// Those that can keep the request out.
    pub(super) fn binding(&self) -> impl Iterator<Item = (usize, &Question)> {
        self.questions.iter().enumerate().filter(|(_, question)| question.binds())
    }
}
