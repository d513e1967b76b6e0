//! The limiter, used on its own.

use std::{sync::Arc, time::Duration};

use super::quota::Policy;
use crate::{
    error::Error,
    key::Key,
    store::{Charge, Item, Rule, Store},
};

/// A policy on a store. Made by [`Store::rate_limit`].
#[derive(Debug, Clone)]
pub struct RateLimit {
    store: Store,
    policy: Policy,
    counter: Arc<str>,
}

impl Store {
    /// A limiter of this policy.
    #[must_use]
    pub fn rate_limit(&self, policy: Policy) -> RateLimit {
        let counter = policy.counter();
        RateLimit { store: self.clone(), policy, counter }
    }
}

/// What a limiter says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    admitted: bool,
    remaining: u64,
    reset: Duration,
}

impl RateLimit {
    /// Charges `cost` to the key's window, or nothing if that would be too much. A cost above the
    /// whole quota is never admitted.
    ///
    /// If the future is dropped, the charge may have been made.
    ///
    /// # Errors
    ///
    /// [`Error`] if the store is away. A call that may have been charged is not sent again.
    pub async fn check(&self, key: impl Into<Key>, cost: u64) -> Result<Decision, Error> {
        let (quota, subject) = (self.policy.quota(), key.into());
        let rule = Rule::Fixed { limit: quota.limit(), window: quota.window() };
        let tag = subject.clone();
        let policy = Arc::clone(&self.counter);
        let items = Arc::new([Item { policy, subject, rule, cost, penalty: None }]);
        let charged = self.store.backend().charge(Charge { tag, items, times: 1 }).await?;
        let state = charged.states.first();
        let remaining = state.map_or(quota.limit(), |state| state.remaining);
        let reset = state.map_or(quota.window(), |state| state.reset);
        Ok(Decision { admitted: charged.admitted == 1, remaining, reset })
    }
}

impl Decision {
    /// Whether the request is within the quota, and was charged.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// What is left of the window's quota.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// When the window ends and the whole quota is there again.
    #[must_use]
    pub fn reset(&self) -> Duration {
        self.reset
    }
}
