//! Delivery of a webhook job: the call of its sender, and the settlement that follows from the
//! outcome.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::{
    defer::{
        envelope::{
            EnvelopeBinding, HeaderPairs, StoredBodyStatus, StoredRequest, StoredResponseHead,
            encode_response,
        },
        rfc3339::timestamp_or_null,
        settlement_rules::{SettlementRules, age_backoff},
        webhook_receivers::ReceiverSlot,
    },
    error::Error,
    store::{ClaimedRun, JobId, JobState, Settlement},
};

/// Sender of webhooks.
pub(in crate::defer) trait WebhookSender: fmt::Debug + Send + Sync {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome>;
}

/// One attempt to deliver a webhook.
#[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "for webhooks only"))]
pub(in crate::defer) struct WebhookCall {
    pub(in crate::defer) url: String,
    /// Value of `webhook-id`, the same for each attempt.
    pub(in crate::defer) id: String,
    pub(in crate::defer) body: Bytes,
    /// Number of the attempt, from 1.
    pub(in crate::defer) attempt: u32,
    /// Must approve the resolved addresses before anything is sent.
    pub(in crate::defer) receiver_slot: Arc<ReceiverSlot>,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "webhook"), allow(dead_code, reason = "for webhooks only"))]
pub(in crate::defer) enum DeliveryOutcome {
    /// The receiver answered with this status.
    Answered(u16),
    /// Sending failed, or no answer came.
    Failed(String),
    /// The address policy forbids the address.
    AddressRefused(&'static str),
    /// Not sent: one of the addresses has no free slot.
    NoReceiverSlot,
}

/// Delivers the webhook and returns its settlement; `None` if there was no free slot and nothing
/// was sent.
pub(in crate::defer) async fn deliver_webhook(
    sender: Option<&dyn WebhookSender>,
    rules: &SettlementRules,
    (binding, run): (EnvelopeBinding<'_>, &ClaimedRun),
    request: &StoredRequest,
    receiver_slot: ReceiverSlot,
) -> Option<Settlement> {
    let dead = |reason| Settlement::Dead { reason, retention: rules.dead_retention };
    let postpone = |delay, reason| Settlement::Postpone { delay, reason };
    let accepted_at = std::time::UNIX_EPOCH + Duration::from_micros(run.accepted_us);
    let Some(sender) = sender else {
        tracing::error!(
            job = %run.id.log_prefix(),
            "a webhook waits for a worker with webhooks; set DeferWorker::webhooks on one"
        );
        return Some(postpone(age_backoff(accepted_at), NO_WEBHOOK_SENDER));
    };
    let reported = str::from_utf8(&request.body).ok().and_then(JobId::parse);
    let Some(reported) = reported else { return Some(dead("unreadable")) };
    let end = match read_job_end(binding).await {
        Ok(Some(end)) => end,
        Ok(None) => return Some(dead("forgotten")),
        Err(_) => return Some(postpone(Duration::from_secs(1), "store unavailable")),
    };
    // A redriven job ends again, which is another webhook.
    let id = format!("{}-{}", run.id, end.ended_us);
    let receiver_slot = Arc::new(receiver_slot);
    let call = WebhookCall {
        url: request.head.target.clone(),
        id,
        body: end.to_payload(&reported),
        attempt: run.attempt,
        receiver_slot: Arc::clone(&receiver_slot),
    };
    let outcome = sender.deliver(call).await;
    if outcome == DeliveryOutcome::NoReceiverSlot {
        return None;
    }
    receiver_slot.record_result(matches!(outcome, DeliveryOutcome::Answered(_)));
    let is_last_attempt = run.attempt >= request.max_attempts;
    Some(classify_delivery(outcome, end.ended_us, is_last_attempt, (binding, run), rules))
}

/// Returns the settlement of a delivery.
fn classify_delivery(
    outcome: DeliveryOutcome,
    ended_us: u64,
    is_last_attempt: bool,
    (binding, run): (EnvelopeBinding<'_>, &ClaimedRun),
    rules: &SettlementRules,
) -> Settlement {
    let retention = rules.dead_retention;
    // The reported job may have ended again, without another job to report that. The settling
    // operation checks `ended_us`.
    let dead = |reason| Settlement::WebhookSettled { ended_us, response: None, reason, retention };
    let retry = |reason| match is_last_attempt {
        true => dead(reason),
        false => Settlement::Retry { delay: rules.backoff.delay_after(run.attempt, None), reason },
    };
    match outcome {
        DeliveryOutcome::Answered(status @ 200..=299) => {
            let head = StoredResponseHead {
                status,
                headers: HeaderPairs::new(),
                body_status: StoredBodyStatus::Full,
            };
            let response = Some((encode_response(binding, &head, b""), status));
            Settlement::WebhookSettled {
                ended_us,
                response,
                reason: "",
                retention: rules.done_retention,
            }
        }
        DeliveryOutcome::Answered(410) => dead("receiver gone"),
        DeliveryOutcome::Answered(status) => {
            tracing::warn!(job = %run.id.log_prefix(), status, "webhook rejected");
            retry("not accepted")
        }
        DeliveryOutcome::Failed(error) => {
            tracing::warn!(job = %run.id.log_prefix(), error, "webhook failed");
            retry("not sent")
        }
        DeliveryOutcome::NoReceiverSlot => {
            Settlement::Postpone { delay: Duration::from_secs(1), reason: NO_RECEIVER_SLOT }
        }
        DeliveryOutcome::AddressRefused(reason) => {
            tracing::error!(
                job = %run.id.log_prefix(), reason,
                "webhook address not allowed; see Webhooks::allow_network"
            );
            dead("refused address")
        }
    }
}

/// Reads the latest end of the reported job. The operation that ended it stored it with the webhook
/// job, since the job itself may be deleted or redriven by now.
async fn read_job_end(binding: EnvelopeBinding<'_>) -> Result<Option<JobEnd>, Error> {
    let webhook_job = binding.store.backend().job_view(binding.id.clone()).await?;
    Ok(webhook_job.and_then(|job| JobEnd::parse(&job.history.webhook_event?)))
}

/// End of a job, as a webhook reports it.
struct JobEnd {
    state: JobState,
    status: Option<u16>,
    reason: Option<String>,
    attempts: u32,
    ended_us: u64,
}

impl JobEnd {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, ' ');
        let state = JobState::parse(parts.next()?)?;
        let attempts = parts.next()?.parse().ok()?;
        let ended_us = parts.next()?.parse().ok()?;
        let status = Some(parts.next()?.parse().ok()?).filter(|status| *status > 0);
        let reason = parts.next().filter(|reason| !reason.is_empty()).map(str::to_owned);
        Some(Self { state, status, reason, attempts, ended_us })
    }

    fn to_payload(&self, id: &JobId) -> Bytes {
        let document = json!({
            "id": id.as_str(),
            "state": self.state.as_str(),
            "status": self.status,
            "reason": self.reason,
            "attempts": self.attempts,
            "ended": timestamp_or_null(self.ended_us),
        });
        document.to_string().into()
    }
}

/// Reason of a postponement: the receiver has no free slot.
pub(in crate::defer) const NO_RECEIVER_SLOT: &str = "no free receiver slot";

/// Reason of a postponement: this worker sends no webhooks.
pub(in crate::defer) const NO_WEBHOOK_SENDER: &str = "no webhook sender";
