//! A call as a job: how it is stored, found and run.

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::{
    defer::{
        envelope::{
            At, Stored, StoredHead, StoredRequest, read_request, read_response, write_request,
            write_response,
        },
        headers::Headers,
        judge::{Rules, by_age},
        stamp::stamp,
    },
    gate::Head,
    key::{Key, SHARDS, digest, hex},
    store::{Caps, Enqueue, JobId, JobPolicy, JobView, Run, Store, Verdict},
};

/// The field of a stored request that has the address. No field of a client can have such a name.
pub(in crate::defer) const FIELD: &str = ":callback";

/// The method of a call that is stored. No request can have it.
pub(in crate::defer) const METHOD: &str = ":callback";

/// With the usual backoff, spread over some 20 minutes; after that it is a dead letter.
const ATTEMPTS: u32 = 12;

/// Times that the call is stored before it is given up: the store is away.
const PUSHES: u32 = 3;

/// Who makes the calls.
pub(in crate::defer) trait Deliver: fmt::Debug + Send + Sync {
    /// `id`: the same for each attempt.
    fn deliver(&self, url: &str, id: &str, body: Bytes) -> BoxFuture<'static, Delivered>;
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "callback"), allow(dead_code, reason = "nobody delivers"))]
pub(in crate::defer) enum Delivered {
    /// Answered with this status.
    Answered(u16),
    /// It could not be sent, or was not answered.
    Failed(String),
    /// It must not be sent there.
    Refused(&'static str),
}

/// Takes the address out of what is about to be run.
pub(in crate::defer) fn take(headers: &mut Headers) -> Option<String> {
    let at = headers.iter().position(|(name, _)| name == FIELD)?;
    String::from_utf8(headers.remove(at).1).ok()
}

/// Whether this job is a call. It is nobody's request, and the status resource has nothing to tell of it.
pub(in crate::defer) fn is_callback(job: &JobView) -> bool {
    job.past.lock.as_ref().is_some_and(Key::is_of_callback)
}

/// Stores a call about this job. Twice is once: its id comes from the job's.
pub(in crate::defer) async fn push(store: &Store, about: &JobId, url: String) {
    let call = call(store, about, url);
    for pause in 1..=PUSHES {
        match store.backend().enqueue(call.clone()).await {
            Ok(_) => return,
            Err(error) => tracing::warn!(job = ?about, %error, "a callback could not be stored"),
        }
        tokio::time::sleep(Duration::from_millis(50) * pause).await;
    }
    tracing::error!(job = ?about, "a callback is lost: store away");
}

/// As [`push`], of a job whose worker has died: what it wanted lies in its envelope.
pub(in crate::defer) async fn push_of_dead(store: &Store, id: &JobId) {
    let Ok(Some(JobView { past, .. })) = store.backend().job(id.clone()).await else {
        return;
    };
    let Ok(Some(envelope)) = store.backend().envelope(id.clone()).await else {
        return;
    };
    let Some(lock) = past.lock else { return };
    let request = read_request(At { store, id, lock: &lock }, &envelope);
    if let Some(url) = request.ok().and_then(|mut request| take(&mut request.head.headers)) {
        push(store, id, url).await;
    }
}

fn call(store: &Store, about: &JobId, url: String) -> Enqueue {
    let key = Key::of_callback(about.as_str());
    let id = id_of(&key);
    let head = Head::new(METHOD, url, Headers::new(), None);
    let at = At { store, id: &id, lock: &key };
    let body = about.as_str().as_bytes();
    let envelope = write_request(at, head, Headers::new(), Vec::new(), ATTEMPTS, body);
    let policy = JobPolicy { again: true, max_attempts: ATTEMPTS, ..JobPolicy::default() };
    // The request it is about was within the caps: so is this.
    let most = u64::MAX >> 12;
    let caps =
        Caps { resource_jobs: most, resource_bytes: most, shard_jobs: most, shard_bytes: most };
    Enqueue { key, id, envelope, policy, record: None, merge: None, caps, owner: String::new() }
}

/// In the shard of its lock, as every job's.
fn id_of(key: &Key) -> JobId {
    debug_assert!(key.shard() < SHARDS, "a key's shard");
    let random = hex(&digest(&[b"callback", key.as_str().as_bytes()])[..16]);
    JobId::parse(&format!("{:02x}{random}", key.shard())).unwrap_or_else(|| JobId::new(key))
}

/// Makes the call, and says what becomes of it.
pub(in crate::defer) async fn run(
    by: Option<&dyn Deliver>,
    rules: &Rules,
    (at, run): (At<'_>, &Run),
    request: &StoredRequest,
) -> Verdict {
    let dead = |reason| Verdict::Dead { reason, retention: rules.keep_dead };
    let back = |delay, reason| Verdict::Back { delay, reason };
    let first_seen = std::time::UNIX_EPOCH + Duration::from_micros(run.accepted_us);
    let Some(by) = by else {
        tracing::error!(job = ?run.id, "a callback waits for a worker with .callbacks(..)");
        return back(by_age(first_seen), NOBODY);
    };
    let about = str::from_utf8(&request.body).ok().and_then(JobId::parse);
    let Some(about) = about else { return dead("unreadable") };
    let job = match at.store.backend().job(about.clone()).await {
        Ok(Some(job)) => job,
        Ok(None) => return dead("forgotten"),
        Err(_) => return back(Duration::from_secs(1), "store away"),
    };
    // Stored before the end was written: that is about to happen, or the worker has died meanwhile.
    if job.state.is_pending() {
        return back(Duration::from_secs(1), "not ended yet");
    }
    let body = told(at.store, &about, &job);
    let retry = |reason| {
        if run.attempt >= request.max_attempts {
            return dead(reason);
        }
        Verdict::Retry { delay: rules.backoff.after(run.attempt, None), reason }
    };
    match by.deliver(&request.head.target, run.id.as_str(), body).await {
        Delivered::Answered(status @ 200..=299) => {
            let head = StoredHead { status, headers: Headers::new(), stored: Stored::Body };
            let response = write_response(at, &head, b"");
            Verdict::Done { response, retention: rules.keep_done }
        }
        Delivered::Answered(410) => dead("nobody wants it"),
        Delivered::Answered(status) => {
            tracing::warn!(job = ?run.id, status, "a callback was not accepted");
            retry("not accepted")
        }
        Delivered::Failed(error) => {
            tracing::warn!(job = ?run.id, error, "a callback failed");
            retry("not sent")
        }
        Delivered::Refused(why) => {
            tracing::error!(job = ?run.id, why, "a callback must not be sent there");
            dead("refused address")
        }
    }
}

/// No worker of this kind.
pub(in crate::defer) const NOBODY: &str = "no callbacks";

fn told(store: &Store, id: &JobId, job: &JobView) -> Bytes {
    let response = job.response.as_ref().zip(job.past.lock.as_ref());
    let head =
        response.and_then(|(stored, lock)| read_response(At { store, id, lock }, stored).ok());
    let document = json!({
        "id": id.as_str(),
        "state": job.state.as_str(),
        "status": head.map(|(head, _)| head.status),
        "reason": job.reason,
        "attempts": job.attempts,
        "ended": stamp(job.past.ended_us),
    });
    document.to_string().into()
}
