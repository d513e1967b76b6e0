//! Quotas of a request, as its handler sees them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    gate::{GateRequest, UnchargedMark},
    key::Key,
    rate_limit::{
        decision::Decision,
        engine::{CheckRequest, PolicyCheck},
        policy_cost_and_reactions::Policy,
    },
    store::Store,
};

/// Quotas that a request was charged to, for its handler.
///
/// Absent if the quotas are unknown:
///
/// - in a deferred run, which was charged before;
/// - for a client on the allow list, and a preflight;
/// - while the store is unavailable.
#[derive(Clone)]
pub struct RateStatus(Arc<RateStatusInner>);

struct RateStatusInner {
    decision: Decision,
    /// The checks that were charged.
    request: CheckRequest,
    store_identity: StoreIdentity,
    /// Cost set by the handler: [`COST_UNSET`] before, and [`COST_SETTLED`] when it is too late.
    handler_cost: AtomicU64,
    /// Maximum cost that the handler may set; `None` if the layer does not use it.
    max_cost: Option<u64>,
    /// Status of the next layer further out.
    outer_status: Option<RateStatus>,
}

/// The cost set by a handler is too high to be counted in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargeCappedError {
    /// The highest cost that all of the layer's policies count.
    pub max: u64,
}

impl fmt::Display for ChargeCappedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cost exceeds the capacity of the quota, {}", self.max)
    }
}

impl std::error::Error for ChargeCappedError {}

/// Status of a request admitted without the store, for inner layers and not for handlers. If
/// present, it is that of the layer passed last.
#[derive(Clone)]
struct LocalRateStatus(RateStatus);

const COST_UNSET: u64 = u64::MAX;

const COST_SETTLED: u64 = u64::MAX - 1;

/// Identity of the store of a charge: the address of its backend. A cloned handle would touch a
/// reference count shared by all threads. The backend lives as long as the layers that compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreIdentity(usize);

impl StoreIdentity {
    pub(super) fn of(store: &Store) -> Self {
        Self(std::ptr::from_ref(store.backend()).addr())
    }
}

/// Relation of a check to the charges of outer layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PriorCharge {
    NotCharged,
    /// Charged to the same counter, by the same quota.
    Equivalent,
    /// Charged to the same counter, but by another quota, for less, in shadow mode, or without the
    /// same penalty.
    Different,
}

impl RateStatus {
    /// Creates a status. `max_cost` is the maximum cost that the handler may set, if the layer uses
    /// it.
    pub(super) fn new(
        decision: Decision,
        (request, store_identity): (CheckRequest, StoreIdentity),
        max_cost: Option<u64>,
        outer_status: Option<Self>,
    ) -> Self {
        let handler_cost = AtomicU64::new(COST_UNSET);
        Self(Arc::new(RateStatusInner {
            decision,
            request,
            store_identity,
            handler_cost,
            max_cost,
            outer_status,
        }))
    }

    /// Returns the status of the layer passed last, even if it decided without the store.
    pub(super) fn from_outer_layer<V: GateRequest>(view: &V) -> Option<Self> {
        view.extension::<LocalRateStatus>()
            .map(|LocalRateStatus(status)| status)
            .or_else(|| view.extension())
    }

    /// Inserts the status into the request. The handler sees it only if the store has decided.
    pub(super) fn insert_into<V: GateRequest>(&self, view: &mut V) {
        if self.is_local() {
            view.insert_extension(LocalRateStatus(self.clone()));
            view.insert_extension(UnchargedMark);
            return;
        }
        if self.0.outer_status.as_ref().is_some_and(Self::is_local) {
            let _ = view.remove_extension::<LocalRateStatus>();
        }
        view.insert_extension(self.clone());
    }

    /// Returns true if the store did not decide: the quotas are unknown, and not reported.
    pub(super) fn is_local(&self) -> bool {
        self.0.decision.is_local()
    }

    /// Returns the policy that the client must obey first, the one with the least remaining.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a decision covers at least one check")]
    pub fn binding_policy(&self) -> &Policy {
        let first = || &*self.0.request.checks[0].policy;
        self.0.decision.binding_policy().map_or_else(first, |each| each.policy())
    }

    /// Returns the decision over all policies of the layer.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Returns the units that the client can still spend at once: the fewest of all policies that
    /// this request was charged to, including those of `RateLimitLayer`s further out. [Shadow
    /// policies](Policy::shadow) do not count. `u64::MAX` if no quota limits the client.
    ///
    /// The number is from the answer of the store, after the charge of this request, so other
    /// requests may have spent some of it since. For this layer alone:
    /// [`decision().remaining()`](Decision::remaining).
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::RateStatus;
    /// # use lockgate::{Quota, Store, middleware::PlainHttp, rate_limit::RateLimitLayer};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handler = service_fn(async |request: Request<Body>| {
    ///     let rate = request.extensions().get::<RateStatus>().expect("it was charged");
    ///     assert_eq!(rate.remaining(), 9);
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let per_second = Quota::requests(10).per(Duration::from_secs(1));
    /// let per_hour = Quota::requests(100).per(Duration::from_secs(3600));
    /// let limit = RateLimitLayer::<PlainHttp>::by_header("x-api-key", per_second);
    /// let service = limit.and_policy(per_hour).store(&Store::memory()).layer(handler);
    ///
    /// let request = Request::get("/").header("x-api-key", "abc").body(Body::default())?;
    /// assert_eq!(service.oneshot(request).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> u64 {
        let outer_layers = std::iter::successors(self.outer(), |status| status.outer());
        let of_layer = |status: &Self| status.decision().remaining();
        outer_layers.map(of_layer).fold(of_layer(self), u64::min)
    }

    /// Returns the status of the next `RateLimitLayer` further out.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        let outer_status = self.0.outer_status.as_ref()?;
        if outer_status.is_local() { outer_status.outer() } else { Some(outer_status) }
    }

    /// Sets the total cost of the request, in place of the charge at its arrival.
    ///
    /// The charge is adjusted when the response is ready or the request is dropped, even beyond the
    /// remaining units. The last call counts. If the store is unavailable at that time, the
    /// adjustment is retried until the window ends, at most for five minutes. An adjustment without
    /// an answer is not retried, since it may have run; the request may then keep the charge at its
    /// arrival.
    ///
    /// Returns false, without consequences, if the layer is not set to `handler_sets_cost`, or if
    /// it is too late: the response is ready, or the request was dropped.
    ///
    /// # Errors
    ///
    /// [`ChargeCappedError`] if the cost exceeds [`Quota::max_charge`](crate::Quota::max_charge) of
    /// one of the policies that use it: ten times the limit, or the burst if that is larger. The
    /// request is then charged this maximum, in each policy. A client that influences the cost can
    /// therefore neither avoid the quota nor block a key for years.
    pub fn set_cost(&self, cost: u64) -> Result<bool, ChargeCappedError> {
        let new_cost = |current: u64| (current != COST_SETTLED).then(|| cost.min(COST_SETTLED - 1));
        let handler_cost = &self.0.handler_cost;
        let updated = handler_cost.fetch_update(Ordering::AcqRel, Ordering::Acquire, new_cost);
        match self.0.max_cost {
            Some(max) if updated.is_ok() && cost > max => Err(ChargeCappedError { max }),
            max_cost => Ok(max_cost.is_some() && updated.is_ok()),
        }
    }

    /// Returns the cost set by the handler, which can't be changed any more.
    pub(super) fn take_handler_cost(&self) -> Option<u64> {
        let handler_cost = self.0.handler_cost.swap(COST_SETTLED, Ordering::AcqRel);
        Some(handler_cost).filter(|cost| *cost < COST_SETTLED)
    }

    /// Returns the charge that this layer or an outer one has made to the check's counter.
    pub(super) fn prior_charge(
        &self,
        store_identity: StoreIdentity,
        group: Option<&Key>,
        check: &PolicyCheck,
    ) -> PriorCharge {
        let prior_check = self.0.request.checks.iter().find(|charged_check| {
            self.0.store_identity == store_identity
                && charged_check.is_counted()
                && charged_check.policy.counter_name() == check.policy.counter_name()
                && charged_check.key == check.key
                && self.0.request.group.as_ref() == group
        });
        match (prior_check, &self.0.outer_status) {
            (Some(charged_check), _) if self.covers(charged_check, check) => {
                PriorCharge::Equivalent
            }
            (Some(_), _) => PriorCharge::Different,
            (None, Some(outer_status)) => outer_status.prior_charge(store_identity, group, check),
            (None, None) => PriorCharge::NotCharged,
        }
    }

    /// Returns true if `charged_check` has enforced everything that `check` would enforce.
    fn covers(&self, charged_check: &PolicyCheck, check: &PolicyCheck) -> bool {
        let penalty = check.policy.penalty_rule();
        charged_check.quota == check.quota
            && charged_check.cost >= check.cost
            && (charged_check.is_enforced() || !check.is_enforced())
            && (penalty.is_none() || penalty == charged_check.policy.penalty_rule())
            // During an outage, one policy may admit all requests where the other counts or
            // refuses.
            && (!self.is_local() || charged_check.policy.outage() == check.policy.outage())
    }
}

impl fmt::Debug for RateStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateStatus").field("decision", &self.0.decision).finish_non_exhaustive()
    }
}
