//! The limiter, used on its own.

use std::sync::Arc;

use super::{
    decision::Decision,
    engine::{CheckRequest, PolicyCheck, RateLimitEngine},
    policy::Policy,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::Store,
};

/// One policy or more on a store. Made by [`Store::rate_limiter`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
/// use std::time::Duration;
/// use lockgate::{Policy, Quota, Store};
///
/// let second = Policy::new(Quota::requests(10).per(Duration::from_secs(1))).with_name("burst");
/// let day = Policy::new(Quota::requests(50_000).per(Duration::from_secs(86_400))).with_name("day");
/// let limit = Store::memory().rate_limiter(second).and(day);
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
    group: Option<Key>,
}

impl Store {
    /// A limiter of this policy, or of this quota under the name `default`.
    #[must_use]
    pub fn rate_limiter(&self, policy: impl Into<Policy>) -> RateLimiter {
        RateLimiter {
            store: self.clone(),
            engine: RateLimitEngine::for_store(self),
            policies: vec![Arc::new(policy.into())],
            group: None,
        }
    }
}

impl RateLimiter {
    /// And this policy: requests have to be within all of them, and are charged to all or to none.
    #[must_use]
    pub fn and(mut self, policy: impl Into<Policy>) -> Self {
        self.policies.push(Arc::new(policy.into()));
        self
    }

    /// Counts everything under this key, so that one call decides about
    /// [several keys](Self::check_each). Counters of another group, or of none, are others.
    #[must_use]
    pub fn group_by(mut self, key: impl Into<Key>) -> Self {
        self.group = Some(key.into());
        self
    }

    /// Charges `cost` to the key in every policy, or nothing in any if that would be too much in one. A
    /// cost of 0 is let in, and not asked about.
    ///
    /// If the future is dropped, the charge may have been made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CostAboveQuota`] if no waiting would help. Where the policy is
    /// [`RateLimitOutage::Refuse`](crate::RateLimitOutage), that the store is away; a call that may have been charged is not
    /// sent again.
    pub async fn check(&self, key: impl Into<Key>, cost: u64) -> Result<Decision, Error> {
        self.run_check(&self.uniform_request(&key.into(), cost)).await
    }

    /// As [`check`](Self::check), with a key and a cost for each policy, in their order; policies that have
    /// none are not asked. What is more than there are policies is left out.
    ///
    /// Keys that are no [group](Self::group_by) are charged one after the other: when one refuses, what
    /// was charged to those before is given back. Nothing is ever let in that should not be, but
    /// somebody else may be refused in between. If the future is dropped, what was charged so far may stay so.
    ///
    /// # Errors
    ///
    /// As `check`.
    pub async fn check_each<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = (K, u64)>,
    ) -> Result<Decision, Error> {
        let pairs = self.policies.iter().zip(keys);
        let questions =
            pairs.map(|(policy, (key, cost))| PolicyCheck::new(policy, key.into(), cost));
        let ask = CheckRequest { checks: questions.collect(), group: self.group.clone() };
        self.run_check(&ask).await
    }

    /// What [`check`](Self::check) would say now. Of a layer's counters as for [`reset`](Self::reset). Charges nothing, and always asks the store. A
    /// cost of 0 asks only what is left, and is refused while the key is [blocked](Policy::penalty).
    /// If the future is dropped, nothing has happened.
    ///
    /// # Errors
    ///
    /// As `check`, and that the store is away whatever the policy says.
    pub async fn peek(&self, key: impl Into<Key>, cost: u64) -> Result<Decision, Error> {
        let decision =
            self.engine.peek(&self.store, &self.uniform_request(&key.into(), cost)).await?;
        error_if_permanent(decision)
    }

    /// Forgets what the key has spent, and ends its penalties, in all of the policies.
    ///
    /// What a layer counts is found by the name of its policy (without one: by its quota) and its key, as that of
    /// [`Key::ip`], [`Key::header`] or [`Key::path_param`], under the same group if it has one:
    /// `store.rate_limiter(Policy::new(quota).with_name("search")).reset(Key::ip(address))`.
    ///
    /// Another process that remembers a refusal learns of it when that ends, or after the time set with
    /// [`Policy::cache_refusals_for`]. Charges that others have [leased](Policy::lease) stay theirs.
    ///
    /// If the future is dropped, or an answer was lost, each policy may have been reset or not; to be sure, reset again.
    ///
    /// # Errors
    ///
    /// [`Error`] if the store is away.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.engine.reset_counters(&self.store, &self.uniform_request(&key.into(), 1)).await
    }

    fn uniform_request(&self, key: &Key, cost: u64) -> CheckRequest {
        let question = |policy| PolicyCheck::new(policy, key.clone(), cost);
        let questions = self.policies.iter().map(question).collect();
        CheckRequest { checks: questions, group: self.group.clone() }
    }

    async fn run_check(&self, ask: &CheckRequest) -> Result<Decision, Error> {
        let checked = self.engine.check(&self.store, ask, false).await?;
        checked.receipt.commit();
        error_if_permanent(checked.decision)
    }
}

fn error_if_permanent(decision: Decision) -> Result<Decision, Error> {
    if decision.is_permanent() {
        return Err(Error::new(ErrorKind::CostAboveQuota, "charge"));
    }
    Ok(decision)
}
