//! Quotas that differ by request, and are remembered by key.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    clock::LONGEST,
    key::Key,
    rate_limit::{
        engine::{CounterMap, CounterState, Spot},
        policy::Policy,
        quota::Quota,
    },
};

type QuotaBy<N> = dyn Fn(&N) -> BoxFuture<'static, Quota> + Send + Sync;

/// For how long a quota is used without asking for it again.
const FRESH: Duration = Duration::from_secs(10);

pub(super) struct Quotas<N: ?Sized> {
    by: Arc<QuotaBy<N>>,
    fresh: Duration,
    seen: Arc<CounterMap<Seen>>,
}

struct Seen {
    quota: Quota,
    until: Instant,
}

impl CounterState for Seen {}

/// The quota of a request.
pub(super) enum Found {
    Known(Quota),
    Asked(BoxFuture<'static, Quota>),
}

impl<N: ?Sized> Quotas<N> {
    pub(super) fn new(by: Arc<QuotaBy<N>>) -> Self {
        Self { by, fresh: FRESH, seen: Arc::default() }
    }

    /// What was seen so far is not known to the copy.
    pub(super) fn fresh_for(&self, fresh: Duration) -> Self {
        Self { by: Arc::clone(&self.by), fresh: fresh.min(LONGEST), seen: Arc::default() }
    }

    pub(super) fn find(&self, policy: &Policy, key: &Key, native: &N) -> Found {
        let now = Instant::now();
        let seen =
            self.seen.with(spot(policy, key), |seen| (now < seen.until).then_some(seen.quota));
        if let Some(quota) = seen.flatten() {
            return Found::Known(quota);
        }
        let (asked, seen) = ((self.by)(native), Arc::clone(&self.seen));
        if self.fresh.is_zero() {
            return Found::Asked(asked);
        }
        let (policy, key, until) = (policy.clone(), key.clone(), now + self.fresh);
        Found::Asked(Box::pin(async move {
            let quota = asked.await;
            seen.enter(
                spot(&policy, &key),
                || Seen { quota, until },
                |seen| *seen = Seen { quota, until },
            );
            quota
        }))
    }
}

fn spot<'a>(policy: &'a Policy, key: &'a Key) -> Spot<'a> {
    Spot { policy: policy.counter(), tag: key, subject: key, quota: policy.quota() }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(quota) => quota.fmt(f),
            Self::Asked(_) => f.write_str("Asked"),
        }
    }
}
