//! What the handler may know of its quotas, and may do about them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    gate::GateRequest,
    key::Key,
    rate_limit::{
        decision::Decision,
        engine::{CheckRequest, PolicyCheck},
        policy::Policy,
    },
    store::Store,
};

/// What the handler may know of the quotas its request was charged to. Absent if nothing is known of them: in a
/// deferred run, which was charged before; for a client on the allow list, and a preflight; while the store is away.
#[derive(Clone)]
pub struct RateStatus(Arc<RateStatusInner>);

struct RateStatusInner {
    decision: Decision,
    /// What was charged.
    request: CheckRequest,
    store_identity: StoreIdentity,
    /// What the handler has set; [`COST_UNSET`] until then, and [`COST_SETTLED`] when it is too late for it.
    handler_cost: AtomicU64,
    /// The most that it may set; `None` if that has no consequences.
    max_cost: Option<u64>,
    /// Of the layer further out.
    outer_status: Option<RateStatus>,
}

/// A handler has set a cost that is too large to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargeCappedError {
    /// The largest cost that all of the layer's policies count.
    pub max: u64,
}

impl fmt::Display for ChargeCappedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request can't be charged more than {} under this quota", self.max)
    }
}

impl std::error::Error for ChargeCappedError {}

/// What a layer has let in without the store: for layers further in, and not for handlers. Where it is there, it is of
/// the layer that was passed last.
#[derive(Clone)]
struct LocalRateStatus(RateStatus);

const COST_UNSET: u64 = u64::MAX;

const COST_SETTLED: u64 = u64::MAX - 1;

/// Which store it was charged in: by where that is. Handles are counted by all threads, and it is there for as long as
/// the layers that ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreIdentity(usize);

impl StoreIdentity {
    pub(super) fn of(store: &Store) -> Self {
        Self(std::ptr::from_ref(store.backend()).addr())
    }
}

/// How a question relates to what layers further out have charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PriorCharge {
    NotCharged,
    /// To the same counter, by the same quota.
    Equivalent,
    /// To the same counter, but by another quota, for less, without being held to it, or without the same penalty.
    Different,
}

impl RateStatus {
    /// `heeded`: the most that the handler may set, if that has consequences.
    pub(super) fn new(
        decision: Decision,
        (ask, at): (CheckRequest, StoreIdentity),
        heeded: Option<u64>,
        outer: Option<Self>,
    ) -> Self {
        let cost = AtomicU64::new(COST_UNSET);
        Self(Arc::new(RateStatusInner {
            decision,
            request: ask,
            store_identity: at,
            handler_cost: cost,
            max_cost: heeded,
            outer_status: outer,
        }))
    }

    /// That of the layer that was passed last, also if it decided without the store.
    pub(super) fn from_outer_layer<V: GateRequest>(view: &V) -> Option<Self> {
        view.extension::<LocalRateStatus>()
            .map(|LocalRateStatus(status)| status)
            .or_else(|| view.extension())
    }

    /// Puts it into the request: for the handler, if it knows anything of the quotas.
    pub(super) fn insert_into<V: GateRequest>(&self, view: &mut V) {
        if self.is_local() {
            view.insert_extension(LocalRateStatus(self.clone()));
            return;
        }
        if self.0.outer_status.as_ref().is_some_and(Self::is_local) {
            let _ = view.remove_extension::<LocalRateStatus>();
        }
        view.insert_extension(self.clone());
    }

    /// Whether it was decided without the store: then nothing is known of the quotas, and nobody is told.
    pub(super) fn is_local(&self) -> bool {
        self.0.decision.is_local()
    }

    /// The policy that leaves least, which is the one to mind.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a decision is about at least one question")]
    pub fn binding_policy(&self) -> &Policy {
        let first = || &*self.0.request.checks[0].policy;
        self.0.decision.binding_policy().map_or_else(first, |each| each.policy())
    }

    /// How it was decided, by all policies of the layer.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// The status of the next `RateLimitLayer` further out.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        let outer = self.0.outer_status.as_ref()?;
        if outer.is_local() { outer.outer() } else { Some(outer) }
    }

    /// Makes the request cost this in all, instead of what it was charged when it came. It is put right when
    /// the response is there, or the request is dropped; more than is left is charged all the same. The
    /// last call counts.
    ///
    /// If the store is away then, it is tried again for as long as the window lasts, five minutes at most; if there is no
    /// answer in time, it is not: it may have been done, and the request may then cost what it was charged when it came.
    ///
    /// False, and without consequences, if the layer isn't set to `settle_by_handler`, or if it is too late: the response
    /// is there, or the request was dropped.
    ///
    /// # Errors
    ///
    /// [`ChargeCappedError`] if it is more than [`Quota::max_charge`](crate::Quota::max_charge) of one of the policies
    /// that heed it: ten times what the quota lets in. The request is charged that instead, in each policy, so that
    /// a cost that a client has a say in is no way around the quota, and no way to block a key for years.
    pub fn set_cost(&self, cost: u64) -> Result<bool, ChargeCappedError> {
        let set = |was: u64| (was != COST_SETTLED).then(|| cost.min(COST_SETTLED - 1));
        let set = self.0.handler_cost.fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
        match self.0.max_cost {
            Some(most) if set.is_ok() && cost > most => Err(ChargeCappedError { max: most }),
            heeded => Ok(heeded.is_some() && set.is_ok()),
        }
    }

    /// What the handler has set; from now on it can't any more.
    pub(super) fn take_handler_cost(&self) -> Option<u64> {
        let set = self.0.handler_cost.swap(COST_SETTLED, Ordering::AcqRel);
        Some(set).filter(|cost| *cost < COST_SETTLED)
    }

    /// What this layer or one further out has charged to the question's counter already.
    pub(super) fn prior_charge(
        &self,
        at: StoreIdentity,
        group: Option<&Key>,
        question: &PolicyCheck,
    ) -> PriorCharge {
        let same = self.0.request.checks.iter().find(|charged| {
            self.0.store_identity == at
                && charged.is_counted()
                && charged.policy.counter_name() == question.policy.counter_name()
                && charged.key == question.key
                && self.0.request.group.as_ref() == group
        });
        match (same, &self.0.outer_status) {
            (Some(charged), _) if self.covers(charged, question) => PriorCharge::Equivalent,
            (Some(_), _) => PriorCharge::Different,
            (None, Some(outer)) => outer.prior_charge(at, group, question),
            (None, None) => PriorCharge::NotCharged,
        }
    }

    /// Whether who was held to the one is held to all that the other is about.
    fn covers(&self, charged: &PolicyCheck, question: &PolicyCheck) -> bool {
        let penalty = question.policy.penalty_rule();
        charged.quota == question.quota
            && charged.cost >= question.cost
            && (charged.is_enforced() || !question.is_enforced())
            && (penalty.is_none() || penalty == charged.policy.penalty_rule())
            // One may let everybody pass where the other counts, or refuses.
            && (!self.is_local() || charged.policy.outage() == question.policy.outage())
    }
}

impl fmt::Debug for RateStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateStatus").field("decision", &self.0.decision).finish_non_exhaustive()
    }
}
