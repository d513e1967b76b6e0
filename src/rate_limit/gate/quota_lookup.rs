//! Quotas that depend on the request, cached by key.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    clock::MAX_DURATION,
    key::Key,
    rate_limit::{
        engine::{BorrowedCounterId, CounterMap, CounterState},
        policy::Policy,
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
    pub(super) fn new(by: Arc<QuotaFn<N>>) -> Self {
        Self { lookup: by, ttl: DEFAULT_QUOTA_TTL, cache: Arc::default() }
    }

    /// Returns a copy with another TTL and an empty cache.
    pub(super) fn with_ttl(&self, fresh: Duration) -> Self {
        Self {
            lookup: Arc::clone(&self.lookup),
            ttl: fresh.min(MAX_DURATION),
            cache: Arc::default(),
        }
    }

    pub(super) fn get_or_fetch(&self, policy: &Policy, key: &Key, native: &N) -> QuotaLookupResult {
        let now = Instant::now();
        let seen = self
            .cache
            .with(counter_ref(policy, key), |seen| (now < seen.expires_at).then_some(seen.quota));
        if let Some(quota) = seen.flatten() {
            return QuotaLookupResult::Cached(quota);
        }
        let (asked, seen) = ((self.lookup)(native), Arc::clone(&self.cache));
        if self.ttl.is_zero() {
            return QuotaLookupResult::Pending(asked);
        }
        let (policy, key, until) = (policy.clone(), key.clone(), now + self.ttl);
        QuotaLookupResult::Pending(Box::pin(async move {
            let quota = asked.await;
            seen.with_or_insert(
                counter_ref(&policy, &key),
                || CachedQuota { quota, expires_at: until },
                |seen| *seen = CachedQuota { quota, expires_at: until },
            );
            quota
        }))
    }
}

fn counter_ref<'a>(policy: &'a Policy, key: &'a Key) -> BorrowedCounterId<'a> {
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
