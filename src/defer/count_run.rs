//! Counts of the runs of a job chain, for metrics and `Store::stats`.

use std::time::Duration;

use super::job_chain::JobChain;
use crate::{
    instruments::{RunResult, WebhookResult, record_webhook},
    store::Settlement,
};

impl JobChain {
    /// Counts the end of a run. The run of a webhook job is the delivery of a webhook. The duration
    /// is not known if another process has lost the run.
    pub(super) fn count_run(
        &self,
        route: Option<&str>,
        result: RunResult,
        duration: Option<Duration>,
    ) {
        if self.is_webhook() {
            record_webhook(match result {
                RunResult::Done => WebhookResult::Delivered,
                RunResult::Dead | RunResult::Cancelled => WebhookResult::Dead,
                RunResult::Retry | RunResult::Lost | RunResult::HandedBack => WebhookResult::Retry,
            });
        } else {
            self.worker.store.counters().record_run(route, result, duration);
        }
    }
}

pub(super) fn run_result(settlement: &Settlement) -> RunResult {
    match settlement {
        Settlement::Done { .. } | Settlement::WebhookSettled { response: Some(_), .. } => {
            RunResult::Done
        }
        Settlement::Dead { .. } | Settlement::WebhookSettled { .. } => RunResult::Dead,
        Settlement::Cancelled { .. } => RunResult::Cancelled,
        Settlement::Retry { .. } => RunResult::Retry,
        Settlement::Postpone { .. } | Settlement::ReturnToQueue { .. } => RunResult::HandedBack,
    }
}
