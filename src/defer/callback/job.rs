//! A call as a job: how it is stored, found and run.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::{
    defer::{
        envelope::{At, Stored, StoredHead, StoredRequest, write_request, write_response},
        headers::Headers,
        hosts::Turn,
        judge::{Rules, by_age},
        stamp::stamp,
    },
    error::Error,
    gate::Head,
    key::{Key, SHARDS, digest, hex},
    store::{WebhookJobSpec, JobId, JobState, JobView, ClaimedRun, Store, Settlement},
};

/// The method of a call that is stored. No request can have it.
pub(in crate::defer) const METHOD: &str = ":callback";

/// With the usual backoff, spread over some 20 minutes; after that it is a dead letter.
const ATTEMPTS: u32 = 12;

/// Sends calls.
pub(in crate::defer) trait Deliver: fmt::Debug + Send + Sync {
    fn deliver(&self, call: Outgoing) -> BoxFuture<'static, Delivered>;
}

/// One attempt at a call.
#[cfg_attr(not(any(test, feature = "callback")), allow(dead_code, reason = "no sender"))]
pub(in crate::defer) struct Outgoing {
    pub(in crate::defer) url: String,
    /// The same for each attempt.
    pub(in crate::defer) id: String,
    pub(in crate::defer) body: Bytes,
    /// Which attempt it is, from 1.
    pub(in crate::defer) attempt: u32,
    /// To be told of the addresses before anything is sent.
    pub(in crate::defer) turn: Arc<Turn>,
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
    /// It was not sent: one of the addresses has no turn.
    NoTurn,
}

/// Whether this job is a call. It is nobody's request, and the status resource has nothing to tell of it.
pub(in crate::defer) fn is_callback(job: &JobView) -> bool {
    job.history.lock.as_ref().is_some_and(Key::is_of_callback)
}

/// The call about this job. It is stored along with it, and becomes a job of its own in the step that ends that one.
pub(in crate::defer) fn call(store: &Store, about: &JobId, url: String) -> WebhookJobSpec {
    let key = Key::of_callback(about.as_str(), about.shard());
    let id = id_of(&key);
    let head = Head::new(METHOD, url, Headers::new(), None);
    let at = At { store, id: &id, lock: &key };
    let body = about.as_str().as_bytes();
    let envelope = write_request(at, head, Headers::new(), Vec::new(), ATTEMPTS, body);
    WebhookJobSpec { key, id, envelope, max_attempts: ATTEMPTS }
}

/// The id of the call that has this lock. In the shard of its lock, as every job's.
pub(in crate::defer) fn id_of(key: &Key) -> JobId {
    debug_assert!(key.shard() < SHARDS, "a key's shard");
    let random = hex(&digest(&[b"callback", key.as_str().as_bytes()])[..16]);
    JobId::parse(&format!("{:02x}{random}", key.shard())).unwrap_or_else(|| JobId::new(key))
}

/// Makes the call, and says what becomes of it. `None`: it has no turn, and was not sent.
pub(in crate::defer) async fn run(
    by: Option<&dyn Deliver>,
    rules: &Rules,
    (at, run): (At<'_>, &ClaimedRun),
    request: &StoredRequest,
    turn: Turn,
) -> Option<Settlement> {
    let dead = |reason| Settlement::Dead { reason, retention: rules.keep_dead };
    let back = |delay, reason| Settlement::Postpone { delay, reason };
    let first_seen = std::time::UNIX_EPOCH + Duration::from_micros(run.accepted_us);
    let Some(by) = by else {
        tracing::error!(job = ?run.id, "a callback waits for a worker with .callbacks(..)");
        return Some(back(by_age(first_seen), NOBODY));
    };
    let about = str::from_utf8(&request.body).ok().and_then(JobId::parse);
    let Some(about) = about else { return Some(dead("unreadable")) };
    let end = match end_of(at).await {
        Ok(Some(end)) => end,
        Ok(None) => return Some(dead("forgotten")),
        Err(_) => return Some(back(Duration::from_secs(1), "store away")),
    };
    // A job that was put back ends again, which is another call.
    let id = format!("{}-{}", run.id, end.ended_us);
    let (url, body, turn) = (request.head.target.clone(), end.told(&about), Arc::new(turn));
    let call = Outgoing { url, id, body, attempt: run.attempt, turn: Arc::clone(&turn) };
    let delivered = by.deliver(call).await;
    if delivered == Delivered::NoTurn {
        return None;
    }
    turn.ended(matches!(delivered, Delivered::Answered(_)));
    let last = run.attempt >= request.max_attempts;
    Some(judge(delivered, end.ended_us, last, (at, run), rules))
}

/// What becomes of a call that was made, as the last one it may make or not.
fn judge(
    delivered: Delivered,
    ended_us: u64,
    last: bool,
    (at, run): (At<'_>, &ClaimedRun),
    rules: &Rules,
) -> Settlement {
    let retention = rules.keep_dead;
    // It may have ended again by now, and nobody else would tell of that: the step that settles this finds out.
    let dead = |reason| Settlement::WebhookSettled { ended_us, response: None, reason, retention };
    let retry = |reason| match last {
        true => dead(reason),
        false => Settlement::Retry { delay: rules.backoff.after(run.attempt, None), reason },
    };
    match delivered {
        Delivered::Answered(status @ 200..=299) => {
            let head = StoredHead { status, headers: Headers::new(), stored: Stored::Body };
            let response = Some((write_response(at, &head, b""), status));
            Settlement::WebhookSettled { ended_us, response, reason: "", retention: rules.keep_done }
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
        Delivered::NoTurn => Settlement::Postpone { delay: Duration::from_secs(1), reason: NO_TURN },
        Delivered::Refused(why) => {
            tracing::error!(job = ?run.id, why, "a callback must not be sent there");
            dead("refused address")
        }
    }
}

/// The last end of its job, which the step that ended that has left with the call: the job itself may have been
/// forgotten by now, or put back.
async fn end_of(at: At<'_>) -> Result<Option<End>, Error> {
    let call = at.store.backend().job_view(at.id.clone()).await?;
    Ok(call.and_then(|call| End::read(&call.history.webhook_event?)))
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

/// Its host or its owner had no turn.
pub(in crate::defer) const NO_TURN: &str = "no turn";

/// No worker of this kind.
pub(in crate::defer) const NOBODY: &str = "no callbacks";
