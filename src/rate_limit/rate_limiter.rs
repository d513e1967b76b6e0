//! Rate limiter for use without a framework.

use std::sync::Arc;

use super::{
    decision::Decision,
    engine::{CheckRequest, PolicyCheck, RateLimitEngine},
    gate::policy_conflict_error,
    policy_cost_and_reactions::Policy,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::Store,
};

/// One or more policies on a store. Created by [`Store::rate_limiter`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
/// use std::time::Duration;
/// use lockgate::{Policy, Quota, Store};
///
/// let second = Quota::requests(10).per(Duration::from_secs(1));
/// let day = Quota::requests(50_000).per(Duration::from_secs(86_400));
/// let limit = Store::memory()
///     .rate_limiter(Policy::new(second).with_name("burst"))
///     .and(Policy::new(day).with_name("day"));
/// let decision = limit.check("customer:7", 4).await?;
/// assert!(decision.is_admitted());
/// assert_eq!(decision.remaining(), 6);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimiter {
    store: Store,
    engine: Arc<RateLimitEngine>,
    policies: Vec<Arc<Policy>>,
    /// Policy that shares its counter or its name with a later one.
    conflicting_policy: Option<Arc<Policy>>,
    group: Option<Key>,
}

/// What the requests of a limiter are counted by, for operators.
const LIMITER_KEYS: &str = "given by the code";

impl Store {
    /// Creates a limiter of this policy, or of a quota, which is called after its numbers.
    #[must_use]
    pub fn rate_limiter(&self, policy: impl Into<Policy>) -> RateLimiter {
        let policy = policy.into();
        policy.register(self, LIMITER_KEYS.to_owned(), false);
        RateLimiter {
            store: self.clone(),
            engine: RateLimitEngine::for_store(self),
            policies: vec![Arc::new(policy)],
            conflicting_policy: None,
            group: None,
        }
    }
}

impl RateLimiter {
    /// Adds a policy. A request must be within all policies, and is charged to all or to none.
    ///
    /// A policy without a name gets a number if another one of the limiter has the same limit and
    /// window: `10-per-1s-2`.
    ///
    /// Two policies of the same name, or of the same quota while both have no name, share a
    /// counter: one key would be charged to it twice. [`check`](Self::check) and
    /// [`peek`](Self::peek), which take one key for all policies, then fail;
    /// [`check_each`](Self::check_each) takes a key for each.
    #[must_use]
    pub fn and(mut self, policy: impl Into<Policy>) -> Self {
        let policy = policy.into().distinguished_from(&self.policies.iter());
        if self.conflicting_policy.is_none() {
            let conflicts = |other: &&Arc<Policy>| policy.conflicts_with(other);
            self.conflicting_policy = self.policies.iter().find(conflicts).cloned();
        }
        policy.register(&self.store, LIMITER_KEYS.to_owned(), false);
        self.policies.push(Arc::new(policy));
        self
    }

    /// Stores all counters under this key, so that one call decides about [several
    /// keys](Self::check_each). Counters of other groups, or of none, are separate.
    #[must_use]
    pub fn group_by(mut self, key: impl Into<Key>) -> Self {
        self.group = Some(key.into());
        self
    }

    /// Charges `cost` to the key in every policy, or in none if it is too much for one. A cost of 0
    /// is admitted without asking the store.
    ///
    /// If the future is dropped, the charge may have been made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CostAboveQuota`] if waiting does not help; [`ErrorKind::Config`] if two
    /// policies share a counter or a name: see [`and`](Self::and). With
    /// [`RateLimitOutage::Refuse`](crate::RateLimitOutage::Refuse), the error of an unavailable
    /// store; a call that may have charged is not repeated.
    pub async fn check(&self, key: impl Into<Key>, cost: u64) -> Result<Decision, Error> {
        self.refuse_conflict("RateLimiter::check")?;
        self.run_check(&self.uniform_request(&key.into(), cost)).await
    }

    /// Like [`check`](Self::check), with a key and a cost for each policy, in order. Policies
    /// without a pair are not asked, and surplus pairs are ignored.
    ///
    /// Keys without a common [group](Self::group_by) are charged one after the other. If one
    /// refuses, the charges of the earlier ones are refunded: another request may be refused
    /// meanwhile, but none is admitted beyond a quota. If the future is dropped, the charges made
    /// so far may stay.
    ///
    /// # Errors
    ///
    /// As for `check`, apart from `Config`: one counter may be charged for several keys.
    pub async fn check_each<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = (K, u64)>,
    ) -> Result<Decision, Error> {
        let pairs = self.policies.iter().zip(keys);
        let checks = pairs.map(|(policy, (key, cost))| PolicyCheck::new(policy, key.into(), cost));
        let mut request = CheckRequest { checks: checks.collect(), group: self.group.clone() };
        self.engine.apply_policy_changes(&mut request);
        self.run_check(&request).await
    }

    /// Returns the decision that [`check`](Self::check) would make now, without a charge; it always
    /// asks the store. The counters of a layer are found as described for [`reset`](Self::reset). A
    /// cost of 0 reads only the remaining units, and is refused while the key is
    /// [blocked](Policy::penalty). If the future is dropped, nothing has happened.
    ///
    /// # Errors
    ///
    /// As for `check`; an unavailable store is an error for every policy.
    pub async fn peek(&self, key: impl Into<Key>, cost: u64) -> Result<Decision, Error> {
        self.refuse_conflict("RateLimiter::peek")?;
        let decision =
            self.engine.peek(&self.store, &self.uniform_request(&key.into(), cost)).await?;
        error_if_permanent(decision)
    }

    /// Resets the usage and the penalties of a key in all policies.
    ///
    /// The counter of a layer is found by the name of its policy (without a name: by its quota),
    /// its key, such as [`Key::ip`], [`Key::header`] or [`Key::path_param`], and its group if it
    /// has one:
    /// `store.rate_limiter(Policy::new(quota).with_name("search")).reset(Key::ip(address))`.
    ///
    /// Other processes repeat a cached refusal until it ends, or for the time set with
    /// [`Policy::cache_refusals_for`]. Units that they have [leased](Policy::quota_lease) stay
    /// theirs.
    ///
    /// If the future is dropped or an answer is lost, each policy may have been reset or not. To be
    /// sure, reset again.
    ///
    /// # Errors
    ///
    /// [`Error`] if the store is unavailable.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.engine.reset_counters(&self.store, &self.uniform_request(&key.into(), 1)).await
    }

    /// Fails if a key that all policies get would be charged to one counter twice.
    fn refuse_conflict(&self, place: &str) -> Result<(), Error> {
        let conflict = self.conflicting_policy.as_ref();
        conflict.map_or(Ok(()), |policy| Err(policy_conflict_error(place, policy.name())))
    }

    fn uniform_request(&self, key: &Key, cost: u64) -> CheckRequest {
        let check = |policy| PolicyCheck::new(policy, key.clone(), cost);
        let checks = self.policies.iter().map(check).collect();
        let mut request = CheckRequest { checks, group: self.group.clone() };
        self.engine.apply_policy_changes(&mut request);
        request
    }

    async fn run_check(&self, request: &CheckRequest) -> Result<Decision, Error> {
        let outcome = self.engine.check(&self.store, request, false).await?;
        outcome.receipt.commit();
        error_if_permanent(outcome.decision)
    }
}

fn error_if_permanent(decision: Decision) -> Result<Decision, Error> {
    if decision.is_permanent() {
        return Err(Error::new(ErrorKind::CostAboveQuota, "charge"));
    }
    Ok(decision)
}
