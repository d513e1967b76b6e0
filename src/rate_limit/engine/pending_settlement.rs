//! Putting charges right in the background, where nobody's leaving ends it.
//!
//! What the store does not answer may have been done: it is not sent again, since a refund that ran twice would
//! let somebody in. What can't have been done, because the store was away or refused its login, is tried again until the
//! window is over that it is about, for [`MAX_RETRY_TIME`] at most, and while no more than
//! [`Pending::MAX_RETRYING_COUNTERS`](super::pending::Pending::MAX_RETRYING_COUNTERS) counters wait for that. Whatever else happens to it, it
//! stays charged as it is until its window ends. A shutdown tries once more and does not wait.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{sync::oneshot, time::Instant};

use super::{RateLimitEngine, background_work::BackgroundWorkGuard, counter_map::CounterRef};
use crate::{
    error::ErrorKind,
    rate_limit::quota::Quota,
    store::{QuotaSnapshot, SettleChargeCommand, Store, WeakStore},
};

/// Most calls that are under way together: the leases of many keys may have to go back.
const MAX_CONCURRENT_CALLS: usize = 64;

/// Before it is tried again; twice as long each time.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(250);

const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// For how long it is tried at most.
const MAX_RETRY_TIME: Duration = Duration::from_secs(300);

/// Charges that are changed, whether that is awaited or not.
pub(in crate::rate_limit) struct PendingSettlement {
    store: Store,
    completion: oneshot::Receiver<()>,
}

impl PendingSettlement {
    /// Resolves when they are, or have to wait, or never will be.
    pub(in crate::rate_limit) async fn wait(self) {
        // It is done, or its runtime has ended, or keeps nobody here for longer than a store does.
        let _ = self.store.await_reply(self.completion).await;
    }
}

impl RateLimitEngine {
    /// In the background.
    pub(super) fn settle_charges(
        self: &Arc<Self>,
        store: &Store,
        calls: Vec<SettleChargeCommand>,
    ) -> PendingSettlement {
        let (done, settled) = oneshot::channel::<()>();
        let (with, begun) = (store.clone(), self.background_work.start());
        let engine = Arc::clone(self);
        store.spawn_background(async move {
            let since = Instant::now();
            let left = engine.send_settlements(&with, calls).await;
            // A response may wait for this, but not for a store that is away; and no handle is kept for it.
            let store = with.downgrade();
            drop((done, with));
            if !left.is_empty() {
                retry_settlements(&engine, store, left, since, &begun).await;
            }
        });
        PendingSettlement { store: store.clone(), completion: settled }
    }

    /// Makes the changes; returns those that were not made.
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
                    // Neither has been run. A login that is refused now may be taken in a while.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config) =>
                    {
                        left.push(call.clone());
                    }
                    Err(error) => {
                        crate::throttle::throttled!(warn, %error, "a charge may not have been put right");
                    }
                }
            }
        }
        left
    }

    /// Notes what is left: an outage begins with that, and not with what the request was charged when it came.
    fn record_settled_states(
        &self,
        sent: Instant,
        call: &SettleChargeCommand,
        states: &[QuotaSnapshot],
    ) {
        for (item, state) in call.items.iter().zip(states) {
            let quota = Quota::from_rule(item.rule);
            let (policy, tag, subject) = (&item.policy, &call.tag, &item.subject);
            self.record_settled(CounterRef { policy, tag, subject, quota }, sent, state);
        }
    }
}

/// Holds no store while it waits: it ends with the last handle.
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

/// Whether there may be a window still that it is about.
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
            "charges were not put right: the store is away"
        );
    }
}
