//! Adjustment of charges in the background, independent of the request's future.
//!
//! - An adjustment without an answer may have run. It is not sent again, since a second refund
//!   would admit a further request.
//! - An adjustment that can't have run, because the store was unavailable or refused the login, is
//!   retried until its window ends, for at most [`MAX_RETRY_TIME`]. At most
//!   `BackgroundWork::MAX_RETRYING_COUNTERS` counters are retried.
//! - In all other cases the charge stays until its window ends.
//! - A shutdown makes one more attempt, and does not wait for further ones.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{sync::oneshot, time::Instant};

use super::{
    RateLimitEngine, background_work::BackgroundWorkGuard, counter_map::BorrowedCounterId,
};
use crate::{
    error::ErrorKind,
    rate_limit::quota::Quota,
    store::{QuotaSnapshot, SettleChargeCommand, Store, WeakStore},
};

/// Maximum number of concurrent calls: the leases of many keys may be returned at once.
const MAX_CONCURRENT_CALLS: usize = 64;

/// Delay before the first retry; it doubles with each further one.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(250);

const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum time for retries.
const MAX_RETRY_TIME: Duration = Duration::from_secs(300);

/// Adjustments that run to their end even if this is dropped.
pub(in crate::rate_limit) struct SettlementHandle {
    store: Store,
    completion: oneshot::Receiver<()>,
}

impl SettlementHandle {
    /// Resolves when the adjustments are made, are to be retried, or were given up.
    pub(in crate::rate_limit) async fn wait(self) {
        // An error means that the runtime has ended, or that the store's wait has timed out.
        let _ = self.store.await_reply(self.completion).await;
    }
}

impl RateLimitEngine {
    /// Starts the adjustments in the background.
    pub(super) fn settle_charges(
        self: &Arc<Self>,
        store: &Store,
        calls: Vec<SettleChargeCommand>,
    ) -> SettlementHandle {
        let (done, settled) = oneshot::channel::<()>();
        let (with, begun) = (store.clone(), self.background_work.start());
        let engine = Arc::clone(self);
        store.spawn_background(async move {
            let since = Instant::now();
            let left = engine.send_settlements(&with, calls).await;
            // A response may wait for the first attempt, but not for an unavailable store. The
            // retries keep no store handle.
            let store = with.downgrade();
            drop((done, with));
            if !left.is_empty() {
                retry_settlements(&engine, store, left, since, &begun).await;
            }
        });
        SettlementHandle { store: store.clone(), completion: settled }
    }

    /// Sends the adjustments, and returns those that have not run.
    async fn send_settlements(
        &self,
        store: &Store,
        calls: Vec<SettleChargeCommand>,
    ) -> Vec<SettleChargeCommand> {
        let mut left = Vec::new();
        for some in calls.chunks(MAX_CONCURRENT_CALLS) {
            let sent = Instant::now();
            let settle = |call: &SettleChargeCommand| store.backend().settle_charge(call.clone());
            let answers = join_all(some.iter().map(settle)).await;
            for (call, answer) in some.iter().zip(answers) {
                match answer {
                    Ok(states) => self.record_settled_states(sent, call, &states),
                    // Neither has run. A login that is refused now may succeed later.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config) =>
                    {
                        left.push(call.clone());
                    }
                    Err(error) => {
                        crate::throttle::throttled!(
                            warn,
                            %error, "a refund or additional charge may have been lost"
                        );
                    }
                }
            }
        }
        left
    }

    /// Records the remaining units, so that an outage starts from them and not from the original
    /// charge.
    fn record_settled_states(
        &self,
        sent: Instant,
        call: &SettleChargeCommand,
        states: &[QuotaSnapshot],
    ) {
        for (item, state) in call.items.iter().zip(states) {
            let quota = Quota::from_rule(item.rule);
            let (policy, tag, subject) = (&item.policy, &call.tag, &item.subject);
            self.record_settled(BorrowedCounterId { policy, tag, subject, quota }, sent, state);
        }
    }
}

/// Retries adjustments. It holds no store handle between attempts, and ends with the last handle.
async fn retry_settlements(
    engine: &RateLimitEngine,
    store: WeakStore,
    left: Vec<SettleChargeCommand>,
    since: Instant,
    begun: &BackgroundWorkGuard,
) {
    let Some(_room) = begun.reserve_retry(counter_count(&left)) else {
        return log_abandoned(&left);
    };
    let (mut left, mut pause) = (left, INITIAL_RETRY_DELAY);
    while !left.is_empty() {
        let closing = begun.sleep_or_shutdown(pause).await;
        let Some(store) = store.upgrade() else { return log_abandoned(&left) };
        let (live, over): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|call| is_within_retry_time(call, since.elapsed()));
        log_abandoned(&over);
        left = engine.send_settlements(&store, live).await;
        if closing {
            return log_abandoned(&left);
        }
        pause = MAX_RETRY_DELAY.min(pause * 2);
    }
}

/// Returns true if a window that the call adjusts may not have ended yet.
fn is_within_retry_time(call: &SettleChargeCommand, after: Duration) -> bool {
    let longest = call.items.iter().map(|item| item.rule.window()).max();
    after < MAX_RETRY_TIME.min(longest.unwrap_or_default())
}

fn counter_count(calls: &[SettleChargeCommand]) -> usize {
    calls.iter().map(|call| call.items.len()).sum()
}

fn log_abandoned(calls: &[SettleChargeCommand]) {
    if !calls.is_empty() {
        let counters = counter_count(calls);
        crate::throttle::throttled!(
            warn,
            counters,
            "refunds and additional charges were dropped: the store is unavailable"
        );
    }
}
