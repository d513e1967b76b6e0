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
        commands: Vec<SettleChargeCommand>,
    ) -> SettlementHandle {
        let (completed, completion) = oneshot::channel::<()>();
        let (store_handle, work_guard) = (store.clone(), self.background_work.start());
        let engine = Arc::clone(self);
        store.spawn_background(async move {
            let started_at = Instant::now();
            let remaining = engine.send_settlements(&store_handle, commands).await;
            // A response may wait for the first attempt, but not for an unavailable store. The
            // retries keep no store handle.
            let store = store_handle.downgrade();
            drop((completed, store_handle));
            if !remaining.is_empty() {
                retry_settlements(&engine, store, remaining, started_at, &work_guard).await;
            }
        });
        SettlementHandle { store: store.clone(), completion }
    }

    /// Sends the adjustments, and returns those that have not run.
    async fn send_settlements(
        &self,
        store: &Store,
        commands: Vec<SettleChargeCommand>,
    ) -> Vec<SettleChargeCommand> {
        let mut remaining = Vec::new();
        for chunk in commands.chunks(MAX_CONCURRENT_CALLS) {
            let sent_at = Instant::now();
            let settle =
                |command: &SettleChargeCommand| store.backend().settle_charge(command.clone());
            let results = join_all(chunk.iter().map(settle)).await;
            for (command, result) in chunk.iter().zip(results) {
                match result {
                    Ok(snapshots) => self.record_settled_states(sent_at, command, &snapshots),
                    // Neither has run. A login that is refused now may succeed later.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config) =>
                    {
                        remaining.push(command.clone());
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
        remaining
    }

    /// Records the remaining units, so that an outage starts from them and not from the original
    /// charge.
    fn record_settled_states(
        &self,
        sent_at: Instant,
        command: &SettleChargeCommand,
        snapshots: &[QuotaSnapshot],
    ) {
        for (item, snapshot) in command.items.iter().zip(snapshots) {
            let quota = Quota::from_rule(item.rule);
            let (policy, tag, subject) = (&item.policy, &command.tag, &item.subject);
            self.record_settled(
                BorrowedCounterId { policy, tag, subject, quota },
                sent_at,
                snapshot,
            );
        }
    }
}

/// Retries adjustments. It holds no store handle between attempts, and ends with the last handle.
async fn retry_settlements(
    engine: &RateLimitEngine,
    store: WeakStore,
    remaining: Vec<SettleChargeCommand>,
    started_at: Instant,
    work_guard: &BackgroundWorkGuard,
) {
    let Some(_reservation) = work_guard.reserve_retry(counter_count(&remaining)) else {
        return log_abandoned(&remaining);
    };
    let (mut remaining, mut retry_delay) = (remaining, INITIAL_RETRY_DELAY);
    while !remaining.is_empty() {
        let is_shutting_down = work_guard.sleep_or_shutdown(retry_delay).await;
        let Some(store) = store.upgrade() else { return log_abandoned(&remaining) };
        let (retryable, expired): (Vec<_>, Vec<_>) = remaining
            .into_iter()
            .partition(|command| is_within_retry_time(command, started_at.elapsed()));
        log_abandoned(&expired);
        remaining = engine.send_settlements(&store, retryable).await;
        if is_shutting_down {
            return log_abandoned(&remaining);
        }
        retry_delay = MAX_RETRY_DELAY.min(retry_delay * 2);
    }
}

/// Returns true if a window that the call adjusts may not have ended yet.
fn is_within_retry_time(command: &SettleChargeCommand, elapsed: Duration) -> bool {
    let longest_window = command.items.iter().map(|item| item.rule.window()).max();
    elapsed < MAX_RETRY_TIME.min(longest_window.unwrap_or_default())
}

fn counter_count(commands: &[SettleChargeCommand]) -> usize {
    commands.iter().map(|command| command.items.len()).sum()
}

fn log_abandoned(commands: &[SettleChargeCommand]) {
    if !commands.is_empty() {
        let counters = counter_count(commands);
        crate::throttle::throttled!(
            warn,
            counters,
            "refunds and additional charges were dropped: the store is unavailable"
        );
    }
}
