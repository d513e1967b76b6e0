//! Webhook jobs: how a webhook is stored beside the job that it reports, and how it is recognized.

use crate::{
    defer::envelope::{EnvelopeBinding, HeaderPairs, encode_request},
    gate::HttpRequestHead,
    key::{Key, SHARD_COUNT, digest_parts, hex},
    store::{JobId, JobView, Store, WebhookJobSpec},
};

/// Stored method of a webhook job. No request can have it.
pub(in crate::defer) const WEBHOOK_METHOD: &str = ":webhook";

/// Attempts of a webhook before it becomes a dead letter. With the default backoff they span at
/// most 19 minutes, besides the calls.
const MAX_ATTEMPTS: u32 = 12;

/// Returns true if this job is a webhook. It belongs to no request, and has no status resource.
pub(in crate::defer) fn is_webhook_job(job: &JobView) -> bool {
    job.history.lock.as_ref().is_some_and(Key::is_webhook)
}

/// Creates the webhook job for the end of job `reported`. It is stored with that job, and becomes a
/// job of its own in the operation that ends it.
pub(in crate::defer) fn new_webhook_job(
    store: &Store,
    reported: &JobId,
    url: String,
) -> WebhookJobSpec {
    let key = Key::for_webhook(reported.as_str(), reported.shard());
    let id = webhook_job_id(&key);
    let head = HttpRequestHead::new(WEBHOOK_METHOD, url, HeaderPairs::new(), None);
    let binding = EnvelopeBinding { store, id: &id, lock: &key };
    let body = reported.as_str().as_bytes();
    let envelope =
        encode_request(binding, head, HeaderPairs::new(), Vec::new(), MAX_ATTEMPTS, None, body);
    WebhookJobSpec { key, id, envelope, max_attempts: MAX_ATTEMPTS }
}

/// Returns the id of the webhook job with this lock, in the lock's shard.
pub(in crate::defer) fn webhook_job_id(key: &Key) -> JobId {
    debug_assert!(key.shard() < SHARD_COUNT, "the shard of a key is below SHARD_COUNT");
    let digest = hex(&digest_parts(&[b"webhook", key.as_str().as_bytes()])[..16]);
    JobId::parse(&format!("{:02x}{digest}", key.shard())).unwrap_or_else(|| JobId::new(key))
}
