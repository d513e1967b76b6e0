//! `NextStep`: the action after a run, for log records.

use std::time::Duration;

use crate::{durations::saturating_millis, store::Settlement};

/// Action after a run: none, another run, or the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextStep {
    /// `retry`: it runs again, and the attempt counts. `run later`: it runs again, and the attempt
    /// does not count. `dead`, `cancelled`: it does not run again. `None` if it is done.
    pub(super) name: Option<&'static str>,
    pub(super) retry_in_ms: Option<u64>,
}

impl NextStep {
    pub(super) fn after(settlement: &Settlement) -> Self {
        let in_ms = |delay: &Duration| Some(saturating_millis(*delay));
        let (name, retry_in_ms) = match settlement {
            Settlement::Done { .. } | Settlement::WebhookSettled { response: Some(_), .. } => {
                (None, None)
            }
            Settlement::Dead { .. } | Settlement::WebhookSettled { .. } => (Some("dead"), None),
            Settlement::Cancelled { .. } => (Some("cancelled"), None),
            Settlement::Retry { delay, .. } => (Some("retry"), in_ms(delay)),
            Settlement::Postpone { delay, .. } | Settlement::ReturnToQueue { delay, .. } => {
                (Some("run later"), in_ms(delay))
            }
        };
        Self { name, retry_in_ms }
    }
}
