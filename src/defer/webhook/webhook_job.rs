//! A call as a job: how it is stored, found and run.

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
        stored_headers::HeaderList,
        webhook_receivers::ReceiverSlot,
    },
    error::Error,
    gate::HttpRequestHead,
    key::{Key, SHARD_COUNT, digest_parts, hex},
    store::{ClaimedRun, JobId, JobState, JobView, Settlement, Store, WebhookJobSpec},
};

/// The method of a call that is stored. No request can have it.
pub(in crate::defer) const WEBHOOK_METHOD: &str = ":callback";

/// With the usual backoff, spread over some 20 minutes; after that it is a dead letter.
const MAX_ATTEMPTS: u32 = 12;

/// Sends calls.
pub(in crate::defer) trait WebhookSender: fmt::Debug + Send + Sync {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome>;
}

/// One attempt at a call.
#[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "no sender"))]
pub(in crate::defer) struct WebhookCall {
    pub(in crate::defer) url: String,
    /// The same for each attempt.
    pub(in crate::defer) id: String,
    pub(in crate::defer) body: Bytes,
    /// Which attempt it is, from 1.
    pub(in crate::defer) attempt: u32,
    /// To be told of the addresses before anything is sent.
    pub(in crate::defer) receiver_slot: Arc<ReceiverSlot>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "webhook"), allow(dead_code, reason = "nobody delivers"))]
pub(in crate::defer) enum DeliveryOutcome {
    /// Answered with this status.
    Answered(u16),
    /// It could not be sent, or was not answered.
    Failed(String),
    /// It must not be sent there.
    AddressRefused(&'static str),
    /// It was not sent: one of the addresses has no turn.
    NoReceiverSlot,
}

/// Whether this job is a call. It is nobody's request, and the status resource has nothing to tell of it.
pub(in crate::defer) fn is_webhook_job(job: &JobView) -> bool {
    job.history.lock.as_ref().is_some_and(Key::is_webhook)
}

/// The call about this job. It is stored along with it, and becomes a job of its own in the step that ends that one.
pub(in crate::defer) fn new_webhook_job(
    store: &Store,
    about: &JobId,
    url: String,
) -> WebhookJobSpec {
    let key = Key::for_webhook(about.as_str(), about.shard());
    let id = webhook_job_id(&key);
    let head = HttpRequestHead::new(WEBHOOK_METHOD, url, HeaderList::new(), None);
    let at = EnvelopeBinding { store, id: &id, lock: &key };
    let body = about.as_str().as_bytes();
    let envelope = encode_request(at, head, HeaderList::new(), Vec::new(), MAX_ATTEMPTS, body);
    WebhookJobSpec { key, id, envelope, max_attempts: MAX_ATTEMPTS }
}

/// The id of the call that has this lock. In the shard of its lock, as every job's.
pub(in crate::defer) fn webhook_job_id(key: &Key) -> JobId {
    debug_assert!(key.shard() < SHARD_COUNT, "a key's shard");
    let random = hex(&digest_parts(&[b"callback", key.as_str().as_bytes()])[..16]);
    JobId::parse(&format!("{:02x}{random}", key.shard())).unwrap_or_else(|| JobId::new(key))
}

/// Makes the call, and says what becomes of it. `None`: it has no turn, and was not sent.
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
        tracing::error!(job = ?run.id, "a callback waits for a worker with .callbacks(..)");
        return Some(back(age_backoff(first_seen), NO_WEBHOOK_SENDER));
    };
    let about = str::from_utf8(&request.body).ok().and_then(JobId::parse);
    let Some(about) = about else { return Some(dead("unreadable")) };
    let end = match read_job_end(at).await {
        Ok(Some(end)) => end,
        Ok(None) => return Some(dead("forgotten")),
        Err(_) => return Some(back(Duration::from_secs(1), "store away")),
    };
    // A job that was put back ends again, which is another call.
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

/// What becomes of a call that was made, as the last one it may make or not.
fn classify_delivery(
    delivered: DeliveryOutcome,
    ended_us: u64,
    last: bool,
    (at, run): (EnvelopeBinding<'_>, &ClaimedRun),
    rules: &SettlementRules,
) -> Settlement {
    let retention = rules.dead_retention;
    // It may have ended again by now, and nobody else would tell of that: the step that settles this finds out.
    let dead = |reason| Settlement::WebhookSettled { ended_us, response: None, reason, retention };
    let retry = |reason| match last {
        true => dead(reason),
        false => Settlement::Retry { delay: rules.backoff.delay_after(run.attempt, None), reason },
    };
    match delivered {
        DeliveryOutcome::Answered(status @ 200..=299) => {
            let head = StoredResponseHead {
                status,
                headers: HeaderList::new(),
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
            tracing::warn!(job = ?run.id, status, "a callback was not accepted");
            retry("not accepted")
        }
        DeliveryOutcome::Failed(error) => {
            tracing::warn!(job = ?run.id, error, "a callback failed");
            retry("not sent")
        }
        DeliveryOutcome::NoReceiverSlot => {
            Settlement::Postpone { delay: Duration::from_secs(1), reason: NO_RECEIVER_SLOT }
        }
        DeliveryOutcome::AddressRefused(why) => {
            tracing::error!(job = ?run.id, why, "a callback must not be sent there");
            dead("refused address")
        }
    }
}

/// The last end of its job, which the step that ended that has left with the call: the job itself may have been
/// forgotten by now, or put back.
async fn read_job_end(at: EnvelopeBinding<'_>) -> Result<Option<JobEnd>, Error> {
    let call = at.store.backend().job_view(at.id.clone()).await?;
    Ok(call.and_then(|call| JobEnd::parse(&call.history.webhook_event?)))
}

/// How a job has ended.
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

/// Its host or its owner had no turn.
pub(in crate::defer) const NO_RECEIVER_SLOT: &str = "no turn";

/// No worker of this kind.
pub(in crate::defer) const NO_WEBHOOK_SENDER: &str = "no callbacks";
