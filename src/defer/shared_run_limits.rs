//! `SharedRunLimits`: limits on runs that all workers of a queue share, of runs at once and of runs
//! per time.
//!
//! Both are stored in the store, and cost calls only if they are set. Concurrency permits are
//! ordinary leases: the permit of a dead worker is free again when its lease expires. Of the chains
//! of a worker only one asks at a time, so chains that wait for a permit cost no calls.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use crate::{
    durations::MAX_DURATION,
    error::Error,
    key::Key,
    store::{
        AcquireCommand, AcquireReply, AdjustmentKind, ChargeAdjustment, ChargeCommand, ChargeItem,
        ChargedWindow, GrantAttempt, LeaseTerms, LockMode, OwnedHold, QuotaRule,
        SettleChargeCommand, Store,
    },
};

/// Time after which a queue entry for a permit expires; it is created anew then.
const PERMIT_QUEUE_TTL: Duration = Duration::from_secs(30);

/// Longest time between two polls for a permit, in case a wake-up is lost.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after a failed call.
const ERROR_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Policy name of the counter.
const RATE_POLICY: &str = "queue-rate";

#[derive(Debug, Default)]
pub(super) struct SharedRunLimits {
    /// Most runs at once.
    pub(super) max_concurrent: Option<u32>,
    /// Most runs per time.
    pub(super) rate: Option<(u64, Duration)>,
    /// Fails instead of waiting. Set by steppers, where time advances only when a test says so.
    pub(super) try_only: bool,
    acquire_mutex: Mutex<()>,
}

/// Permission to start runs, one after the other.
#[derive(Debug, Default)]
pub(super) struct RunPermit {
    concurrency_permit: Option<OwnedHold>,
    /// Window of a charge that no run has used yet.
    unused_charge: Option<ChargedWindow>,
}

impl SharedRunLimits {
    /// Waits until a run may start. Returns `None` only with `try_only`. Cancel safe: a permit is
    /// released, but a charge is not refunded.
    pub(super) async fn acquire(&self, store: &Store, lease: Duration) -> Option<RunPermit> {
        if self.max_concurrent.is_none() && self.rate.is_none() {
            return Some(RunPermit::default());
        }
        let _one_at_a_time = self.acquire_mutex.lock().await;
        let concurrency_permit = match self.max_concurrent {
            Some(runs) => {
                Some(acquire_concurrency_permit(store, runs, lease, self.try_only).await?)
            }
            None => None,
        };
        let mut permit = RunPermit { concurrency_permit, unused_charge: None };
        while let Err(wait) = self.charge_rate(store, &mut permit).await {
            if self.try_only {
                self.release(store, permit).await;
                return None;
            }
            tokio::time::sleep(wait).await;
        }
        Some(permit)
    }

    /// Returns true if another run may start at once under the same permit.
    pub(super) async fn reuse(&self, store: &Store, permit: &mut RunPermit) -> bool {
        let is_held =
            permit.concurrency_permit.as_ref().is_none_or(|hold| hold.state().loss().is_none());
        is_held && self.charge_rate(store, permit).await.is_ok()
    }

    /// Charges one run, unless a charge is unused. `Err` holds the time to wait.
    async fn charge_rate(&self, store: &Store, permit: &mut RunPermit) -> Result<(), Duration> {
        let Some((runs, window)) = self.rate.filter(|_| permit.unused_charge.is_none()) else {
            return Ok(());
        };
        let key = Key::for_queue_workers();
        let item = ChargeItem {
            policy: RATE_POLICY.into(),
            subject: key.clone(),
            rule: gcra_rule(runs, window),
            cost: 1,
            penalty: None,
        };
        let command = ChargeCommand { tag: key, items: Arc::new([item]), repetitions: 1 };
        match store.backend().charge(command).await {
            Ok(charged) => {
                let snapshot = charged.snapshots.first();
                if charged.admitted > 0 {
                    permit.unused_charge = snapshot.map(|snapshot| snapshot.charged_window);
                    return Ok(());
                }
                Err(snapshot.map_or(ERROR_RETRY_DELAY, |snapshot| {
                    snapshot.retry_after.clamp(Duration::from_millis(1), window)
                }))
            }
            Err(error) => {
                tracing::warn!(node = %store.node(), %error, "queue rate not charged");
                Err(ERROR_RETRY_DELAY)
            }
        }
    }

    /// Refunds an unused charge and releases the concurrency permit.
    pub(super) async fn release(&self, store: &Store, permit: RunPermit) {
        let RunPermit { concurrency_permit, unused_charge } = permit;
        if let (Some(charged_window), Some((runs, window))) = (unused_charge, self.rate) {
            let key = Key::for_queue_workers();
            let refund = ChargeAdjustment {
                policy: RATE_POLICY.into(),
                subject: key.clone(),
                rule: gcra_rule(runs, window),
                kind: AdjustmentKind::Refund { units: 1, window: charged_window },
            };
            let command = SettleChargeCommand { tag: key, items: vec![refund] };
            if let Err(error) = store.backend().settle_charge(command).await {
                tracing::debug!(node = %store.node(), %error, "unused charge not returned");
            }
        }
        if let Some(hold) = concurrency_permit
            && let Err(error) = hold.release().await
        {
            tracing::warn!(node = %store.node(), %error, "queue permit not released");
        }
    }
}

impl RunPermit {
    /// Marks the charge as spent by a run that has started.
    pub(super) fn consume_charge(&mut self) {
        self.unused_charge = None;
    }
}

/// Spreads runs evenly with a burst of a tenth of `runs`. Within any window, the number of runs
/// exceeds the rate by at most the burst.
fn gcra_rule(runs: u64, window: Duration) -> QuotaRule {
    QuotaRule::Gcra { limit: runs, window, burst: runs.div_ceil(10) }
}

fn log_and_back_off(store: &Store, error: &Error) -> Duration {
    tracing::warn!(node = %store.node(), %error, "no queue permit");
    ERROR_RETRY_DELAY
}

/// Queues for one of `max_runs` permits; with `try_only`, makes one attempt.
async fn acquire_concurrency_permit(
    store: &Store,
    max_runs: u32,
    lease: Duration,
    try_only: bool,
) -> Option<OwnedHold> {
    let (key, mode) = (Key::for_queue_workers(), LockMode::Permits(max_runs));
    let mut attempt = GrantAttempt::new(store, &key, mode);
    let wakeup = store.wakeups().subscribe_offers(&attempt.token);
    let mut resume_seq = 0;
    loop {
        let command = AcquireCommand {
            key: key.clone(),
            token: attempt.token.clone(),
            mode,
            lease,
            max_wait: Some(PERMIT_QUEUE_TTL).filter(|_| !try_only),
            resume_seq,
            record_name: None,
        };
        let wait = match attempt.send(lease, || store.backend().acquire(command)).await {
            Ok(AcquireReply::Granted { fence, .. }) => {
                let terms =
                    LeaseTerms { lease, renews: true, max_hold: MAX_DURATION, job: None, mode };
                match attempt.accept_grant(fence, terms) {
                    Ok(hold) => return Some(hold),
                    Err(_) if try_only => return None,
                    Err(error) => log_and_back_off(store, &error),
                }
            }
            _ if try_only => return None,
            Ok(AcquireReply::Busy { lease_remaining, seq, .. }) => {
                resume_seq = seq;
                lease_remaining.clamp(Duration::from_millis(1), PERMIT_POLL_INTERVAL)
            }
            Ok(AcquireReply::AlreadyAccepted) => ERROR_RETRY_DELAY,
            Err(error) => log_and_back_off(store, &error),
        };
        let _ = tokio::time::timeout_at(Instant::now() + wait, wakeup.notified()).await;
    }
}
