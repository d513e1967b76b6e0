//! A call as a job: how it is stored, found and run.

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::{
    defer::{
        envelope::{
            At, Stored, StoredHead, StoredRequest, read_response, write_request, write_response,
        },
        headers::Headers,
        judge::{Rules, by_age},
        stamp::stamp,
    },
    error::Error,
    gate::Head,
    key::{Key, SHARDS, digest, hex},
    store::{Call, JobId, JobState, JobView, Run, Store, Verdict},
};

/// The method of a call that is stored. No request can have it.
pub(in crate::defer) const METHOD: &str = ":callback";

/// With the usual backoff, spread over some 20 minutes; after that it is a dead letter.
const ATTEMPTS: u32 = 12;

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

/// Whether this job is a call. It is nobody's request, and the status resource has nothing to tell of it.
pub(in crate::defer) fn is_callback(job: &JobView) -> bool {
    job.past.lock.as_ref().is_some_and(Key::is_of_callback)
}

/// The call about this job. It is stored along with it, and becomes a job of its own in the step that ends that one.
pub(in crate::defer) fn call(store: &Store, about: &JobId, url: String) -> Call {
    let key = Key::of_callback(about.as_str(), about.shard());
    let id = id_of(&key);
    let head = Head::new(METHOD, url, Headers::new(), None);
    let at = At { store, id: &id, lock: &key };
    let body = about.as_str().as_bytes();
    let envelope = write_request(at, head, Headers::new(), Vec::new(), ATTEMPTS, body);
    Call { key, id, envelope, max_attempts: ATTEMPTS }
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
    let end = match end_of(at, &about).await {
        Ok(Found::Ended(end)) => end,
        // It was put back, and will end again.
        Ok(Found::Pending) => return back(Duration::from_secs(1), "not ended yet"),
        Ok(Found::Nothing) => return dead("forgotten"),
        Err(_) => return back(Duration::from_secs(1), "store away"),
    };
    let body = end.told(&about);
    let retry = |reason| {
        if run.attempt >= request.max_attempts {
            return dead(reason);
        }
        Verdict::Retry { delay: rules.backoff.after(run.attempt, None), reason }
    };
    // A job that was put back ends again, which is another call.
    let id = format!("{}-{}", run.id, end.ended_us);
    match by.deliver(&request.head.target, &id, body).await {
        Delivered::Answered(status @ 200..=299) => {
            match end_of(at, &about).await {
                Ok(Found::Ended(other)) if other.ended_us != end.ended_us => {
                    back(Duration::from_secs(1), "ended again")
                }
                Ok(Found::Pending) => back(Duration::from_secs(1), "not ended yet"),
                Ok(_) => {
                    let head = StoredHead { status, headers: Headers::new(), stored: Stored::Body };
                    let response = write_response(at, &head, b"");
                    Verdict::Done { response, status, retention: rules.keep_done }
                }
                // Nobody else would tell of another end: told twice, by the same id, is better than never.
                Err(_) => back(Duration::from_secs(1), "store away"),
            }
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

/// What there is to tell of a job.
enum Found {
    Ended(End),
    Pending,
    /// Neither the job nor what was kept of its end.
    Nothing,
}

/// By the job itself; if it is forgotten by now, by what the step that ended it has left with the call.
async fn end_of(at: At<'_>, about: &JobId) -> Result<Found, Error> {
    let backend = at.store.backend();
    if let Some(job) = backend.job(about.clone()).await? {
        let pending = job.state.is_pending();
        return Ok(if pending { Found::Pending } else { Found::Ended(End::of(at, about, job)) });
    }
    let call = backend.job(at.id.clone()).await?;
    let end = call.and_then(|call| End::read(&call.past.tells?));
    Ok(end.map_or(Found::Nothing, Found::Ended))
}

/// How a job has ended.
struct End {
    state: JobState,
    status: Option<u16>,
    reason: Option<String>,
    attempts: u32,
    ended_us: u64,
}

impl End {
    fn of(at: At<'_>, id: &JobId, job: JobView) -> Self {
        let stored = job.response.as_ref().zip(job.past.lock.as_ref());
        let head = stored.and_then(|(stored, lock)| {
            read_response(At { store: at.store, id, lock }, stored).ok()
        });
        Self {
            state: job.state,
            status: head.map(|(head, _)| head.status),
            reason: job.reason,
            attempts: job.attempts,
            ended_us: job.past.ended_us,
        }
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let state = JobState::parse(words.next()?)?;
        let attempts = words.next()?.parse().ok()?;
        let ended_us = words.next()?.parse().ok()?;
        let status = Some(words.next()?.parse().ok()?).filter(|status| *status > 0);
        let reason = words.next().filter(|reason| !reason.is_empty()).map(str::to_owned);
        Some(Self { state, status, reason, attempts, ended_us })
    }

    fn told(&self, id: &JobId) -> Bytes {
        let document = json!({
            "id": id.as_str(),
            "state": self.state.as_str(),
            "status": self.status,
            "reason": self.reason,
            "attempts": self.attempts,
            "ended": stamp(self.ended_us),
        });
        document.to_string().into()
    }
}

/// No worker of this kind.
pub(in crate::defer) const NOBODY: &str = "no callbacks";
