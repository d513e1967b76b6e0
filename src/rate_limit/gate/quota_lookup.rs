//! Quotas that depend on the request, cached by key.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    durations::MAX_DURATION,
    key::Key,
    rate_limit::{
        engine::{BorrowedCounterId, CounterMap, CounterState},
        policy_cost_and_reactions::Policy,
        quota::Quota,
    },
};

type QuotaFn<N> = dyn Fn(&N) -> BoxFuture<'static, Quota> + Send + Sync;

/// Default time for which a quota is used before the next lookup.
const DEFAULT_QUOTA_TTL: Duration = Duration::from_secs(10);

pub(super) struct QuotaLookup<N: ?Sized> {
    lookup: Arc<QuotaFn<N>>,
    ttl: Duration,
    cache: Arc<CounterMap<CachedQuota>>,
}

struct CachedQuota {
    quota: Quota,
    expires_at: Instant,
}

impl CounterState for CachedQuota {}

/// Quota of a request.
pub(super) enum QuotaLookupResult {
    Cached(Quota),
    Pending(BoxFuture<'static, Quota>),
}

impl<N: ?Sized> QuotaLookup<N> {
    pub(super) fn new(lookup: Arc<QuotaFn<N>>) -> Self {
        Self { lookup, ttl: DEFAULT_QUOTA_TTL, cache: Arc::default() }
    }

    /// Returns a copy with another TTL and an empty cache.
    pub(super) fn with_ttl(&self, ttl: Duration) -> Self {
        Self { lookup: Arc::clone(&self.lookup), ttl: ttl.min(MAX_DURATION), cache: Arc::default() }
    }

    pub(super) fn get_or_fetch(&self, policy: &Policy, key: &Key, native: &N) -> QuotaLookupResult {
        let now = Instant::now();
        let cached = self.cache.with(borrowed_counter_id(policy, key), |cached| {
            (now < cached.expires_at).then_some(cached.quota)
        });
        if let Some(quota) = cached.flatten() {
            return QuotaLookupResult::Cached(quota);
        }
        let (fetch, cached) = ((self.lookup)(native), Arc::clone(&self.cache));
        if self.ttl.is_zero() {
            return QuotaLookupResult::Pending(fetch);
        }
        let (policy, key, expires_at) = (policy.clone(), key.clone(), now + self.ttl);
        QuotaLookupResult::Pending(Box::pin(async move {
            let quota = fetch.await;
            cached.with_or_insert(
                borrowed_counter_id(&policy, &key),
                || CachedQuota { quota, expires_at },
                |cached| *cached = CachedQuota { quota, expires_at },
            );
            quota
        }))
    }
}

fn borrowed_counter_id<'a>(policy: &'a Policy, key: &'a Key) -> BorrowedCounterId<'a> {
    BorrowedCounterId {
        policy: policy.counter_name(),
        tag: key,
        subject: key,
        quota: policy.quota(),
    }
}

impl fmt::Debug for QuotaLookupResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cached(quota) => quota.fmt(f),
            Self::Pending(_) => f.write_str("Asked"),
        }
    }
}
