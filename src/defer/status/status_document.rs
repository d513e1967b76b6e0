//! `StatusDocument`: the status document of a job, and the replies with its stored response.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::run_time_averages::RunTimeAverages;
use crate::{
    defer::{
        envelope::{
            EnvelopeBinding, EnvelopeError, StoredBodyStatus, StoredResponseHead, decode_response,
        },
        rfc3339::timestamp_or_null,
        run_authorization::NOT_AUTHORIZED,
    },
    durations::ceil_millis,
    key::{Key, digest_parts, hex},
    reply::{Reply, problem},
    store::{JobId, JobState, JobView, Store},
};

/// Status document with its entity tag.
#[derive(Debug)]
pub(super) struct StatusDocument {
    /// All members except those that change with time alone, such as the remaining delay.
    members: Map<String, Value>,
    etag: String,
    job: JobView,
}

impl StatusDocument {
    pub(super) fn new(store: &Store, id: &JobId, job: &JobView) -> Self {
        let members = document_members(store, id, job);
        let text = Value::Object(members.clone()).to_string();
        // Covers the stored response as far as the document shows it.
        let etag = hex(&digest_parts(&[text.as_bytes()])[..12]);
        Self { members, etag, job: job.clone() }
    }

    /// Returns the entity tag without quotes. It is weak: it does not cover the remaining delay.
    pub(super) fn etag(&self) -> &str {
        &self.etag
    }

    pub(super) fn to_json(&self) -> Value {
        let mut members = self.members.clone();
        if let Some(due_in) = self.job.history.due_in.filter(|_| self.job.state.is_pending()) {
            members.insert("due_in_ms".into(), ceil_millis(due_in).into());
        }
        Value::Object(members)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.job.state.is_pending()
    }

    pub(super) fn to_reply(&self, store: &Store) -> Reply {
        let reply = self.with_etag(Reply::json(200, &self.to_json()));
        let reply = with_successor_link(reply, &self.job, "./", "");
        let run_times = store.extension::<RunTimeAverages>();
        if self.is_pending() {
            return reply.retry_after(run_times.estimate_retry_after(&self.job));
        }
        run_times.record(&self.job);
        reply
    }

    /// Returns a 304: the client's document is current.
    pub(super) fn not_modified_reply(&self) -> Reply {
        self.with_etag(Reply::new(304).header("cache-control", "no-store"))
    }

    fn with_etag(&self, reply: Reply) -> Reply {
        reply.header("etag", format!("W/\"{}\"", self.etag)).header("vary", "accept")
    }
}

fn document_members(store: &Store, id: &JobId, job: &JobView) -> Map<String, Value> {
    let history = &job.history;
    let mut doc = Map::new();
    let mut put = |name: &str, value: Value| doc.insert(name.to_owned(), value);
    put("id", id.as_str().into());
    put("state", job.state.as_str().into());
    put("position", job.position.into());
    put("attempts", job.attempts.into());
    put("accepted", timestamp_or_null(history.accepted_us));
    put("began", timestamp_or_null(history.started_us));
    put(
        "ended",
        if job.state.is_pending() { Value::Null } else { timestamp_or_null(history.ended_us) },
    );
    let is_unwatched = job.state == JobState::Queued && !job.is_watched;
    if let Some(reason) = &job.reason {
        put("reason", reason.as_str().into());
    } else if is_unwatched {
        put("reason", "no worker".into());
    }
    if is_unwatched {
        put("worker", false.into());
    }
    for (name, count) in [("crashes", history.crash_count), ("busy", history.busy_count)] {
        if count > 0 {
            put(name, count.into());
        }
    }
    if !history.recent_runs.is_empty() {
        put("runs", history.recent_runs.iter().filter_map(|run| parse_run_entry(run)).collect());
    }
    if let Some(by) = &history.superseded_by {
        put("superseded_by", by.as_str().into());
    }
    if let Some(Ok((head, body))) = read_stored_response(store, id, job) {
        put("response", embedded_response(&head, &body));
    }
    doc
}

/// Parses one run of the history: `<attempt> <began us> <ended us> <outcome>`.
fn parse_run_entry(run: &str) -> Option<Value> {
    let mut parts = run.splitn(4, ' ');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (attempt, began, ended) = (number()?, number()?, number()?);
    let outcome = parts.next().unwrap_or_default();
    let (began, ended) = (timestamp_or_null(began), timestamp_or_null(ended));
    Some(json!({ "attempt": attempt, "began": began, "ended": ended, "outcome": outcome }))
}

/// Adds a link to the job that superseded this one. It is relative to the requested URL, since the
/// mount path is unknown here.
fn with_successor_link(reply: Reply, job: &JobView, prefix: &str, suffix: &str) -> Reply {
    match &job.history.superseded_by {
        Some(by) => {
            reply.header("link", format!("<{prefix}{by}{suffix}>; rel=\"successor-version\""))
        }
        None => reply,
    }
}

/// Embeds the stored response in the document: JSON as JSON, text as a string, other bytes as null.
fn embedded_response(head: &StoredResponseHead, body: &Bytes) -> Value {
    let mut headers = Map::new();
    for (name, value) in &head.headers {
        headers.insert(name.clone(), String::from_utf8_lossy(value).into());
    }
    let content_type = headers.get("content-type").and_then(Value::as_str).unwrap_or_default();
    let is_json = content_type.starts_with("application/json") || content_type.contains("+json");
    let body = match std::str::from_utf8(body) {
        Ok(text) if is_json => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        Ok(text) => text.into(),
        Err(_) => Value::Null,
    };
    json!({ "status": head.status, "headers": headers, "body": body, "stored": head.body_status.as_str() })
}

/// Returns the stored response itself. Jobs that never get a response are answered with 410: a 5xx
/// would look like a failure of this resource, and be retried.
pub(super) fn verbatim_response(store: &Store, id: &JobId, job: &JobView) -> Reply {
    if job.is_tombstone {
        return gone_reply(Some(job));
    }
    let state = job.state.as_str();
    if job.state.is_pending() {
        let mut doc = Map::new();
        doc.insert("state".into(), state.into());
        doc.insert("position".into(), job.position.into());
        return Reply::json(202, &Value::Object(doc))
            .retry_after(store.extension::<RunTimeAverages>().estimate_retry_after(job));
    }
    let (head, body) = match read_stored_response(store, id, job) {
        Some(Ok(response)) => response,
        // Another process of the service may be able to read it.
        Some(Err(EnvelopeError::MissingKey | EnvelopeError::NewerVersion)) => {
            return Reply::store_unavailable();
        }
        Some(Err(EnvelopeError::Corrupted)) | None => return no_response_reply(job, state),
    };
    if head.body_status != StoredBodyStatus::Full {
        let title = "The body of the response was not kept";
        return Reply::problem(410, problem::RESPONSE_NOT_RETAINED, title)
            .with_member("response_status", head.status)
            .with_member("stored", head.body_status.as_str());
    }
    let mut reply = Reply::new(head.status).header("cache-control", "no-store");
    // Opened by a link, the response must do no more than as the answer to its original request,
    // which no form can send across sites. It must not act as a page of this origin.
    for (name, value) in
        [("x-content-type-options", "nosniff"), ("content-security-policy", "sandbox")]
    {
        if !head.headers.iter().any(|(stored, _)| stored == name) {
            reply = reply.header(name, value);
        }
    }
    for (name, value) in head.headers {
        match String::from_utf8(value) {
            Ok(value) if value.is_ascii() => reply.headers.push((name.into(), value.into())),
            Ok(value) => reply.binary_headers.push((name, value.into())),
            Err(value) => reply.binary_headers.push((name, value.into_bytes().into())),
        }
    }
    reply.body = body;
    reply
}

/// Returns a 410 for a job that has ended and was evicted or purged. `job` is its tombstone, or
/// `None` if the tombstone is gone too.
pub(in crate::defer) fn gone_reply(job: Option<&JobView>) -> Reply {
    let title = "This request was accepted and has ended; what was kept of it is gone";
    let mut reply = Reply::problem(410, problem::RETENTION_EXPIRED, title);
    if let Some(job) = job {
        reply = reply
            .with_member("state", job.state.as_str())
            .with_member("ended", timestamp_or_null(job.history.ended_us));
        if let Some(reason) = &job.reason {
            reply = reply.with_member("reason", reason.as_str());
        }
    }
    reply
}

fn no_response_reply(job: &JobView, state: &str) -> Reply {
    let without_response = |title| Reply::problem(410, problem::NO_RESPONSE, title);
    let reply = match job.state {
        JobState::Cancelled => without_response("It was cancelled: there is no response"),
        JobState::Expired => {
            without_response("Its time ran out before it ran: there is no response")
        }
        // The status that a direct run would have had.
        JobState::Dead if job.reason.as_deref() == Some(NOT_AUTHORIZED) => {
            let title = "It was not authorized any more when its turn came, and has not run";
            Reply::problem(403, problem::NOT_AUTHORIZED, title)
        }
        _ => without_response("It was given up: there is no response"),
    };
    let mut reply = reply.with_member("state", state);
    if let Some(reason) = &job.reason {
        reply = reply.with_member("reason", reason.as_str());
    }
    if let Some(by) = &job.history.superseded_by {
        reply = reply.with_member("superseded_by", by.as_str());
    }
    with_successor_link(reply, job, "../", "/response")
}

fn read_stored_response(
    store: &Store,
    id: &JobId,
    job: &JobView,
) -> Option<Result<(StoredResponseHead, Bytes), EnvelopeError>> {
    let response = job.response.as_ref()?;
    // An unsealed envelope may belong to a job without a known lock.
    let lock = job.history.lock.clone().unwrap_or_else(|| Key::custom(""));
    let response = decode_response(EnvelopeBinding { store, id, lock: &lock }, response);
    if let Err(error) = &response {
        crate::throttle::throttled!(error, job = %id.log_prefix(), reason = ?error, "a stored response could not be read");
    }
    Some(response)
}
