//! Webhook job: how a webhook is stored, found and delivered.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::{
    defer::{
        envelope::{
            EnvelopeBinding, StoredBodyStatus, StoredRequest, StoredResponseHead, encode_request,
            encode_response,
        },
        rfc3339::timestamp_or_null,
        settlement_rules::{SettlementRules, age_backoff},
        stored_headers::HeaderPairs,
        webhook_receivers::ReceiverSlot,
    },
    error::Error,
    gate::HttpRequestHead,
    key::{Key, SHARD_COUNT, digest_parts, hex},
    store::{ClaimedRun, JobId, JobState, JobView, Settlement, Store, WebhookJobSpec},
};

/// Stored method of a webhook job. No request can have it.
pub(in crate::defer) const WEBHOOK_METHOD: &str = ":callback";

/// Attempts of a webhook before it becomes a dead letter. With the default backoff they span at
/// most 19 minutes, besides the calls.
const MAX_ATTEMPTS: u32 = 12;

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

/// Returns true if this job is a webhook. It belongs to no request, and has no status resource.
pub(in crate::defer) fn is_webhook_job(job: &JobView) -> bool {
    job.history.lock.as_ref().is_some_and(Key::is_webhook)
}

/// Creates the webhook job for the end of job `about`. It is stored with that job, and becomes a
/// job of its own in the operation that ends it.
pub(in crate::defer) fn new_webhook_job(
    store: &Store,
    about: &JobId,
    url: String,
) -> WebhookJobSpec {
    let key = Key::for_webhook(about.as_str(), about.shard());
    let id = webhook_job_id(&key);
    let head = HttpRequestHead::new(WEBHOOK_METHOD, url, HeaderPairs::new(), None);
    let at = EnvelopeBinding { store, id: &id, lock: &key };
    let body = about.as_str().as_bytes();
    let envelope = encode_request(at, head, HeaderPairs::new(), Vec::new(), MAX_ATTEMPTS, body);
    WebhookJobSpec { key, id, envelope, max_attempts: MAX_ATTEMPTS }
}

/// Returns the id of the webhook job with this lock, in the lock's shard.
pub(in crate::defer) fn webhook_job_id(key: &Key) -> JobId {
    debug_assert!(key.shard() < SHARD_COUNT, "the shard of a key is below SHARD_COUNT");
    let random = hex(&digest_parts(&[b"callback", key.as_str().as_bytes()])[..16]);
    JobId::parse(&format!("{:02x}{random}", key.shard())).unwrap_or_else(|| JobId::new(key))
}

/// Delivers the webhook and returns its settlement; `None` if there was no free slot and nothing
/// was sent.
pub(in crate::defer) async fn deliver_webhook(
    by: Option<&dyn WebhookSender>,
    rules: &SettlementRules,
    (at, run): (EnvelopeBinding<'_>, &ClaimedRun),
    request: &StoredRequest,
    turn: ReceiverSlot,
) -> Option<Settlement> {
    let dead = |reason| Settlement::Dead { reason, retention: rules.dead_retention };
    let back = |delay, reason| Settlement::Postpone { delay, reason };
    let first_seen = std::time::UNIX_EPOCH + Duration::from_micros(run.accepted_us);
    let Some(by) = by else {
        tracing::error!(
            job = ?run.id,
            "a webhook waits for a worker with webhooks; set DeferWorker::webhooks on one"
        );
        return Some(back(age_backoff(first_seen), NO_WEBHOOK_SENDER));
    };
    let about = str::from_utf8(&request.body).ok().and_then(JobId::parse);
    let Some(about) = about else { return Some(dead("unreadable")) };
    let end = match read_job_end(at).await {
        Ok(Some(end)) => end,
        Ok(None) => return Some(dead("forgotten")),
        Err(_) => return Some(back(Duration::from_secs(1), "store away")),
    };
    // A redriven job ends again, which is another webhook.
    let id = format!("{}-{}", run.id, end.ended_us);
    let (url, body, turn) = (request.head.target.clone(), end.to_payload(&about), Arc::new(turn));
    let call =
        WebhookCall { url, id, body, attempt: run.attempt, receiver_slot: Arc::clone(&turn) };
    let delivered = by.deliver(call).await;
    if delivered == DeliveryOutcome::NoReceiverSlot {
        return None;
    }
    turn.record_result(matches!(delivered, DeliveryOutcome::Answered(_)));
    let last = run.attempt >= request.max_attempts;
    Some(classify_delivery(delivered, end.ended_us, last, (at, run), rules))
}

/// Returns the settlement of a delivery; `last` if no attempt is left.
fn classify_delivery(
    delivered: DeliveryOutcome,
    ended_us: u64,
    last: bool,
    (at, run): (EnvelopeBinding<'_>, &ClaimedRun),
    rules: &SettlementRules,
) -> Settlement {
    let retention = rules.dead_retention;
    // The reported job may have ended again, without another job to report that. The settling
    // operation checks `ended_us`.
    let dead = |reason| Settlement::WebhookSettled { ended_us, response: None, reason, retention };
    let retry = |reason| match last {
        true => dead(reason),
        false => Settlement::Retry { delay: rules.backoff.delay_after(run.attempt, None), reason },
    };
    match delivered {
        DeliveryOutcome::Answered(status @ 200..=299) => {
            let head = StoredResponseHead {
                status,
                headers: HeaderPairs::new(),
                body_status: StoredBodyStatus::Full,
            };
            let response = Some((encode_response(at, &head, b""), status));
            Settlement::WebhookSettled {
                ended_us,
                response,
                reason: "",
                retention: rules.done_retention,
            }
        }
        DeliveryOutcome::Answered(410) => dead("nobody wants it"),
        DeliveryOutcome::Answered(status) => {
            tracing::warn!(job = ?run.id, status, "webhook rejected");
            retry("not accepted")
        }
        DeliveryOutcome::Failed(error) => {
            tracing::warn!(job = ?run.id, error, "webhook failed");
            retry("not sent")
        }
        DeliveryOutcome::NoReceiverSlot => {
            Settlement::Postpone { delay: Duration::from_secs(1), reason: NO_RECEIVER_SLOT }
        }
        DeliveryOutcome::AddressRefused(why) => {
            tracing::error!(
                job = ?run.id, reason = why, "webhook address not allowed; see Webhooks::allow_network"
            );
            dead("refused address")
        }
    }
}

/// Reads the latest end of the reported job. The operation that ended it stored it with the webhook
/// job, since the job itself may be deleted or redriven by now.
async fn read_job_end(at: EnvelopeBinding<'_>) -> Result<Option<JobEnd>, Error> {
    let call = at.store.backend().job_view(at.id.clone()).await?;
    Ok(call.and_then(|call| JobEnd::parse(&call.history.webhook_event?)))
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
        let mut words = text.splitn(5, ' ');
        let state = JobState::parse(words.next()?)?;
        let attempts = words.next()?.parse().ok()?;
        let ended_us = words.next()?.parse().ok()?;
        let status = Some(words.next()?.parse().ok()?).filter(|status| *status > 0);
        let reason = words.next().filter(|reason| !reason.is_empty()).map(str::to_owned);
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
pub(in crate::defer) const NO_RECEIVER_SLOT: &str = "no turn";

/// Reason of a postponement: this worker sends no webhooks.
pub(in crate::defer) const NO_WEBHOOK_SENDER: &str = "no callbacks";
