//! Store calls of a job chain: the claim of a lock's first job, and the settlement of its run.

use std::time::Duration;

use tokio::time::Instant;
use tracing::Span;

use super::{
    job_chain::{ChainOutcome, JobChain},
    run_label::RunLabel,
    worker::WorkerSettings,
};
use crate::{
    error::ErrorKind,
    store::{
        ClaimCommand, ClaimOutcome, ClaimedRun, GrantAttempt, JobId, LeaseTerms, LockMode,
        NextClaim, OwnedHold, RunCancellation, SettleCommand, SettleOutcome, Settlement, Store,
    },
};

/// Most heads that one chain tries. Ended jobs are skipped; a later chain continues.
const MAX_CLAIM_HEADS: usize = 8;

/// Number of `ErrorKind::Protocol` errors after which a claim is given up.
const MAX_PROTOCOL_ERRORS: u32 = 3;

/// Delay before a claim without a reply is repeated.
const CLAIM_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Time that must be left of a hold for a last attempt to settle its run.
const FINAL_SETTLE_MARGIN: Duration = Duration::from_millis(10);

/// A run that has begun, with the hold on its lock.
pub(super) struct StartedRun {
    pub(super) run: ClaimedRun,
    pub(super) hold: OwnedHold,
    /// Empty until the stored request is decoded.
    pub(super) label: RunLabel,
    /// Disabled until the stored request is decoded.
    pub(super) span: Span,
    /// Tells the run that an operator cancels it.
    pub(super) cancellation: RunCancellation,
}

impl StartedRun {
    fn new(run: ClaimedRun, hold: OwnedHold, store: &Store) -> Self {
        let cancellation = store.wakeups().register_run(run.id.as_str());
        Self { run, hold, label: RunLabel::default(), span: Span::none(), cancellation }
    }
}

impl JobChain {
    /// Claims the first job of the lock. `Err` if there is nothing to run now.
    pub(super) async fn claim_first(
        &self,
        mut head: Option<JobId>,
    ) -> Result<StartedRun, ChainOutcome> {
        for head_index in 0..MAX_CLAIM_HEADS {
            // The head is unknown. The claim returns it, or reports an empty queue and repairs the
            // queue.
            let id = head.take().unwrap_or_else(|| JobId::new(&self.key));
            let mut attempt = GrantAttempt::for_claim(&self.worker.store, &self.key, &id);
            let Some(claimed) = self.send_claim(&mut attempt, &id).await else {
                return Err(ChainOutcome::RetryAfter(Duration::from_millis(200)));
            };
            if let ClaimOutcome::Claimed(run) = claimed {
                // An earlier claim would have used up the offer.
                if head_index == 0 {
                    self.warn_lost_holder(&run);
                }
                return match attempt.accept_grant(run.fence, self.lease_terms(&run.id)) {
                    Ok(hold) => Ok(StartedRun::new(run, hold, &self.worker.store)),
                    // The lease is no longer certain. Dropping the attempt returns the job
                    // uncharged.
                    Err(error) => {
                        tracing::warn!(job = %id.log_prefix(), %error, "claim arrived too late");
                        Err(ChainOutcome::RetryAfter(Duration::from_millis(200)))
                    }
                };
            }
            attempt.mark_refused();
            match claimed {
                ClaimOutcome::Busy(wait) | ClaimOutcome::NotDue(wait) => {
                    return Err(ChainOutcome::RetryAfter(wait));
                }
                ClaimOutcome::QueueEmpty => return Err(ChainOutcome::AwaitWakeup),
                ClaimOutcome::Ended(id) => self.report_end_without_run(&id).await,
                ClaimOutcome::NotFirst(first) => head = Some(first),
                ClaimOutcome::Claimed(_) => {}
            }
        }
        Err(ChainOutcome::RetryAfter(Duration::ZERO))
    }

    fn lease_terms(&self, id: &JobId) -> LeaseTerms {
        let WorkerSettings { lease, max_run_time, .. } = &*self.worker;
        let (job, mode) = (Some(id.clone()), LockMode::Exclusive);
        LeaseTerms { lease: *lease, renews: true, max_hold: *max_run_time, job, mode }
    }

    /// Sends the claim, and repeats it with the same token for as long as a lost claim would be
    /// sure to hold the lock. Given up earlier, it could leave a job that looks as if its worker
    /// had died.
    async fn send_claim(&self, attempt: &mut GrantAttempt, id: &JobId) -> Option<ClaimOutcome> {
        let WorkerSettings { store, lease, settlement_rules: rules, .. } = &*self.worker;
        let (mut give_up_at, mut protocol_errors) = (None, 0);
        loop {
            let command = ClaimCommand {
                key: self.key.clone(),
                id: id.clone(),
                token: attempt.token.clone(),
                lease: *lease,
                retention: rules.dead_retention,
            };
            let error = match attempt.send(*lease, || store.backend().claim(command)).await {
                Ok(claimed) => return Some(claimed),
                Err(error) => error,
            };
            tracing::warn!(job = %id.log_prefix(), %error, "claim failed");
            if error.may_have_run() {
                give_up_at.get_or_insert(attempt.valid_until());
            }
            // A protocol error most likely repeats; giving up lets other locks proceed.
            protocol_errors += u32::from(error.kind() == ErrorKind::Protocol);
            if protocol_errors == MAX_PROTOCOL_ERRORS {
                return None;
            }
            match give_up_at {
                Some(give_up_at) if Instant::now() < give_up_at => {
                    tokio::time::sleep(CLAIM_RETRY_DELAY).await;
                }
                _ => return None,
            }
        }
    }

    /// Settles a run. Repeats the call until the store replies or the hold is no longer certain.
    ///
    /// Returns `None` if the run was lost. Otherwise the settlement is stored, and the inner option
    /// holds the next run, if `continues` is set and there is one.
    pub(super) async fn settle(
        &self,
        started: StartedRun,
        settlement: Settlement,
        continues: bool,
    ) -> Option<Option<StartedRun>> {
        let StartedRun { run, mut hold, .. } = started;
        // Dropped without a reply, the attempt returns any job that it may have claimed.
        let mut next =
            continues.then(|| GrantAttempt::for_next_claim(&self.worker.store, &self.key));
        let outcome = self.send_settlement(&run.id, &hold, settlement, next.as_mut()).await?;
        let claimed = match outcome {
            SettleOutcome::RunLost => None,
            SettleOutcome::Settled(claimed) => {
                hold.mark_run_settled(run.id.clone());
                Some(claimed)
            }
        };
        match (claimed, next) {
            (Some(Some(run)), Some(mut attempt)) => {
                // If the lease is no longer certain, the job returns uncharged, and another chain
                // claims it.
                let hold = attempt.accept_grant(run.fence, self.lease_terms(&run.id)).ok();
                Some(hold.map(|hold| StartedRun::new(run, hold, &self.worker.store)))
            }
            (claimed, next) => {
                next.into_iter().for_each(GrantAttempt::mark_refused);
                claimed.map(|_| None)
            }
        }
    }

    async fn send_settlement(
        &self,
        id: &JobId,
        hold: &OwnedHold,
        settlement: Settlement,
        mut next: Option<&mut GrantAttempt>,
    ) -> Option<SettleOutcome> {
        let WorkerSettings { store, lease, settlement_rules: rules, .. } = &*self.worker;
        let hold_state = hold.state();
        let mut retry_delay = Duration::from_millis(10);
        loop {
            let next_token = next.as_ref().map(|attempt| attempt.token.clone());
            let command = SettleCommand {
                key: self.key.clone(),
                id: id.clone(),
                token: hold_state.lease.token.clone(),
                settlement: settlement.clone(),
                next_claim: next_token.map(|token| NextClaim {
                    token,
                    lease: *lease,
                    retention: rules.dead_retention,
                }),
            };
            let send = || store.backend().settle(command);
            let result = match &mut next {
                Some(attempt) => attempt.send(*lease, send).await,
                None => send().await,
            };
            match result {
                Ok(outcome) => return Some(outcome),
                Err(error) => tracing::warn!(job = %id.log_prefix(), %error, "settlement failed"),
            }
            let remaining = hold_state.valid_until().saturating_duration_since(Instant::now());
            if remaining <= FINAL_SETTLE_MARGIN || hold_state.loss().is_some() {
                return None;
            }
            // The hold may expire before the delay ends, or be renewed meanwhile. Capping the delay
            // leaves time for one more attempt.
            tokio::time::sleep(retry_delay.min(remaining - FINAL_SETTLE_MARGIN)).await;
            retry_delay = (retry_delay * 2).min(Duration::from_millis(500));
        }
    }
}
