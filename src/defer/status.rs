//! The status resource: what has become of a deferred request.
//!
//! `GET {base}/{id}` is a JSON document, `GET {base}/{id}/response` the stored response verbatim,
//! `DELETE {base}/{id}` cancels what waits. `Prefer: wait=N` holds a `GET` until something changes. An
//! id that is unknown, malformed or somebody else's is the same 404.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::envelope::{StoredHead, read_response};
use crate::{
    error::Error,
    gate::View,
    reply::{Reply, problem},
    store::{JobId, JobState, JobView, Store},
};

type Asker<N> = dyn Fn(&N) -> Option<String> + Send + Sync;

/// Longest wait that `Prefer: wait=N` gets.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Longest time between two looks while waiting: bounds a lost message.
const LOOK: Duration = Duration::from_secs(1);

/// How long a cancelled job can be looked up.
const KEEP_CANCELLED: Duration = Duration::from_secs(24 * 60 * 60);

/// The status resource, for an integration to mount.
pub struct StatusGate<N: ?Sized> {
    store: Option<Store>,
    asker: Option<Arc<Asker<N>>>,
}

/// One request to the status resource.
#[derive(Debug)]
#[must_use = "it is answered by `StatusRequest::answer`"]
pub struct StatusRequest {
    store: Store,
    id: Option<JobId>,
    /// `.../response` was asked for.
    response: bool,
    cancel: bool,
    wait: Option<Duration>,
    /// Who asks, where that counts; nobody sees nothing.
    asker: Option<Option<String>>,
}

impl<N: ?Sized> StatusGate<N> {
    /// Visible to whoever knows an id.
    #[must_use]
    pub fn new() -> Self {
        Self { store: None, asker: None }
    }

    /// Answers from this store, whatever the request brings along.
    #[must_use]
    pub fn store(mut self, store: &Store) -> Self {
        self.store = Some(store.clone());
        self
    }

    /// See `DeferredRoutes::visible_to`.
    #[must_use]
    pub fn visible_to(
        mut self,
        asker: impl Fn(&N) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.asker = Some(Arc::new(asker));
        self
    }

    /// Reads a request for this id; `response` is true for `.../response`.
    ///
    /// # Errors
    ///
    /// The answer, if there is nothing to ask the store.
    pub fn ask<V: View<Native = N>>(
        &self,
        view: &mut V,
        id: &str,
        response: bool,
    ) -> Result<StatusRequest, Reply> {
        let cancel = match view.method() {
            "GET" | "HEAD" => false,
            "DELETE" if !response => true,
            _ => {
                let allow = if response { "GET, HEAD" } else { "GET, HEAD, DELETE" };
                let reply = Reply::problem(405, problem::METHOD, "Method not allowed");
                return Err(reply.field("allow", allow));
            }
        };
        let store = self.store.clone().or_else(|| view.store());
        let store = store.ok_or_else(|| crate::outage::no_store("deferred_routes"))?;
        let asker = self.asker.as_ref().map(|asker| asker(view.native()));
        let wait = wait(&view.header("prefer"));
        Ok(StatusRequest { store, id: JobId::parse(id), response, cancel, wait, asker })
    }
}

impl StatusRequest {
    /// Asks the store. Cancel safe.
    pub async fn answer(self) -> Reply {
        let Some(id) = self.id.clone() else {
            return not_found();
        };
        let answer = if self.cancel { self.cancel(&id).await } else { self.show(&id).await };
        answer.unwrap_or_else(|error| {
            tracing::error!(job = ?id, %error, "no status: store away");
            Reply::store_away()
        })
    }

    async fn show(&self, id: &JobId) -> Result<Reply, Error> {
        let Some(job) = self.changed(id).await? else {
            return Ok(not_found());
        };
        let reply = if self.response { verbatim(&job) } else { document(id, &job) };
        Ok(match self.wait {
            Some(wait) => reply.field("preference-applied", format!("wait={}", wait.as_secs())),
            None => reply,
        })
    }

    /// The job, at once or when it is no longer as it was; `None` if there is none to be seen.
    async fn changed(&self, id: &JobId) -> Result<Option<JobView>, Error> {
        let Some(wait) = self.wait else {
            return self.look(id).await;
        };
        let until = Instant::now() + wait;
        // Listen first, then look: what happens in between rings the bell.
        let bell = self.store.hints().job(id);
        let mut rung = Box::pin(bell.notified());
        let first = self.look(id).await?;
        loop {
            let pending = first.as_ref().is_some_and(|job| job.state.is_pending());
            if !pending || Instant::now() >= until {
                return Ok(first);
            }
            let look = until.min(Instant::now() + LOOK);
            let _ = tokio::time::timeout_at(look, rung).await;
            rung = Box::pin(bell.notified());
            let now = self.look(id).await?;
            if now != first {
                return Ok(now);
            }
        }
    }

    async fn look(&self, id: &JobId) -> Result<Option<JobView>, Error> {
        let job = self.store.backend().job(id.clone()).await?;
        let sees = |job: &JobView| match &self.asker {
            None => true,
            Some(asker) => asker.as_ref() == Some(&job.owner),
        };
        Ok(job.filter(sees))
    }

    async fn cancel(&self, id: &JobId) -> Result<Reply, Error> {
        if self.look(id).await?.is_none() {
            return Ok(not_found());
        }
        let state = self.store.backend().cancel(id.clone(), KEEP_CANCELLED).await?;
        Ok(match state {
            Some(JobState::Cancelled) => {
                tracing::info!(job = ?id, "deferred request cancelled");
                Reply::new(204)
            }
            Some(state) => {
                Reply::problem(409, problem::NOT_CANCELLABLE, "It can't be cancelled any more")
                    .member("state", state.as_str())
            }
            None => not_found(),
        })
    }
}

fn not_found() -> Reply {
    Reply::problem(404, problem::UNKNOWN_JOB, "No such deferred request")
}

fn document(id: &JobId, job: &JobView) -> Reply {
    let mut doc = Map::new();
    doc.insert("id".into(), id.as_str().into());
    doc.insert("state".into(), job.state.as_str().into());
    doc.insert("position".into(), job.position.into());
    doc.insert("attempts".into(), job.attempts.into());
    if let Some(reason) = &job.reason {
        doc.insert("reason".into(), reason.as_str().into());
    } else if job.state == JobState::Queued && !job.watched {
        doc.insert("reason".into(), "no worker".into());
    }
    if let Some((head, body)) = stored(job) {
        doc.insert("response".into(), embedded(&head, &body));
    }
    let reply = Reply::json(200, &Value::Object(doc));
    if job.state.is_pending() { reply.retry_after(Duration::from_secs(1)) } else { reply }
}

/// The stored response inside the document: JSON as JSON, text as text, other bytes by reference.
fn embedded(head: &StoredHead, body: &Bytes) -> Value {
    let mut fields = Map::new();
    for (name, value) in &head.headers {
        fields.insert(name.clone(), String::from_utf8_lossy(value).into());
    }
    let kind = fields.get("content-type").and_then(Value::as_str).unwrap_or_default();
    let is_json = kind.starts_with("application/json") || kind.contains("+json");
    let body = match std::str::from_utf8(body) {
        Ok(text) if is_json => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        Ok(text) => text.into(),
        Err(_) => Value::Null,
    };
    json!({ "status": head.status, "headers": fields, "body": body, "whole": head.whole })
}

fn verbatim(job: &JobView) -> Reply {
    if job.state.is_pending() {
        return Reply::json(202, &json!({ "state": job.state.as_str() }))
            .retry_after(Duration::from_secs(1));
    }
    let Some((head, body)) = stored(job) else {
        return Reply::problem(410, problem::UNKNOWN_JOB, "It ended without a response")
            .member("state", job.state.as_str());
    };
    if !head.whole {
        let title = "The response was too long to be kept";
        return Reply::problem(410, problem::NOT_KEPT, title)
            .member("response_status", head.status);
    }
    let mut reply = Reply::new(head.status).field("cache-control", "no-store");
    for (name, value) in head.headers {
        if let Ok(value) = String::from_utf8(value) {
            reply.fields.push((name.into(), value.into()));
        }
    }
    reply.body = body;
    reply
}

fn stored(job: &JobView) -> Option<(StoredHead, Bytes)> {
    read_response(job.response.as_ref()?).ok()
}

/// The `wait` of `Prefer` fields (RFC 7240): the first counts, unknown or broken ones are ignored.
fn wait(values: &[&[u8]]) -> Option<Duration> {
    let list = values.iter().filter_map(|value| std::str::from_utf8(value).ok());
    let mut preferences = list.flat_map(|value| value.split(','));
    let wait = preferences.find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse())
    })?;
    Some(Duration::from_secs(wait.ok()?).min(MAX_WAIT))
}

impl<N: ?Sized> Default for StatusGate<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: ?Sized> Clone for StatusGate<N> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), asker: self.asker.clone() }
    }
}

impl<N: ?Sized> fmt::Debug for StatusGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusGate").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wait_counts_and_is_bounded() {
        let seconds = |text: &str| wait(&[text.as_bytes()]).map(|wait| wait.as_secs());
        assert_eq!(seconds("wait=5"), Some(5));
        assert_eq!(seconds("respond-async, Wait=\"7\"; x=1, wait=9"), Some(7));
        assert_eq!(seconds("wait=1000000"), Some(30));
        for none in ["", "respond-async", "wait", "wait=x", "wait=-1", "waits=3"] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }
}
