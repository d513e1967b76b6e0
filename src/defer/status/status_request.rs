//! `StatusRequest`: a request to the status resource, and its execution.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::{
    request_headers::IfNoneMatch,
    status_document::{StatusDocument, gone_reply, verbatim_response},
    status_events::StatusEvents,
    status_paths::StatusPaths,
};
use crate::{
    defer::{
        jobs::{CancelOutcome, cancel_job},
        webhook::is_webhook_job,
        wiring_registry::WiringRegistry,
    },
    error::Error,
    reply::{Reply, problem},
    store::{JobId, JobState, JobView, PollFreshness, SharedJobPoll, Store},
};

/// Longest time between two polls of a waiting request; bounds the cost of a lost wake-up.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Most requests of this process that wait for changes at once. Each one polls now and then, on the
/// connections that locks and runs use. Further requests get the current state, and a delay before
/// their next poll.
const MAX_STATUS_WAITERS: usize = 4096;

struct StatusWaiters(Arc<Semaphore>);

impl Default for StatusWaiters {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_STATUS_WAITERS)))
    }
}

/// One request to the status resource.
#[derive(Debug)]
#[must_use = "a request has no response until `StatusRequest::execute` is awaited"]
pub struct StatusRequest {
    pub(super) store: Store,
    pub(super) id: Option<JobId>,
    pub(super) action: StatusAction,
    pub(super) wait: Option<Duration>,
    pub(super) viewer: StatusViewer,
    /// Path of the resource, if the router tells it.
    pub(super) served_path: Option<String>,
    pub(super) wait_end: WaitEnd,
}

/// Resolves when requests have to stop waiting for changes.
pub(super) type WaitEnd = Shared<BoxFuture<'static, ()>>;

/// Identity that visibility depends on.
pub(super) enum StatusViewer {
    /// Every job is visible.
    Anyone,
    /// `None` sees no job.
    Identified(Option<String>),
    Pending(BoxFuture<'static, Option<String>>),
}

impl fmt::Debug for StatusViewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Anyone) { "Anyone" } else { "Identified" })
    }
}

/// Action of a request.
#[derive(Debug)]
pub(super) enum StatusAction {
    Document { if_none_match: IfNoneMatch },
    Response,
    Events { last_event_id: Option<String> },
    Cancel,
}

/// Reply of the status resource.
#[derive(Debug)]
#[non_exhaustive]
pub enum StatusReply {
    /// Complete reply.
    Complete(Reply),
    /// Status and headers, with a body that is streamed.
    Events(Reply, StatusEvents),
}

impl StatusRequest {
    /// Ends the waits of this request when `end` resolves, such as at the drain of a server, which
    /// waits for open responses: `Prefer: wait` is answered with the current state, and a stream of
    /// events ends. Its client reconnects. Default: the waits end after 25 s.
    pub fn end_waits_at(mut self, end: impl Future<Output = ()> + Send + 'static) -> Self {
        self.wait_end = end.boxed().shared();
        self
    }

    /// Executes the request on the store. Cancel safe.
    pub async fn execute(self) -> StatusReply {
        let Some(id) = self.id.clone() else {
            return StatusReply::Complete(not_found_reply());
        };
        // Before the store is queried, in every case: the duration must not reveal whether the job
        // exists.
        let viewer = match self.viewer {
            StatusViewer::Anyone => None,
            StatusViewer::Identified(viewer) => Some(viewer),
            StatusViewer::Pending(viewer) => Some(viewer.await),
        };
        let job = VisibleJob { store: self.store, id, viewer, wait_end: self.wait_end };
        let reply = match self.action {
            StatusAction::Cancel => job.cancel().await.map(StatusReply::Complete),
            StatusAction::Events { last_event_id } => {
                StatusEvents::open_stream(job.clone(), last_event_id).await
            }
            StatusAction::Document { if_none_match } => {
                job.document_reply(&if_none_match, self.wait).await.map(StatusReply::Complete)
            }
            StatusAction::Response => {
                job.response_reply(self.wait).await.map(StatusReply::Complete)
            }
        };
        if let Some(path) = self.served_path.filter(|_| reply.as_ref().is_ok_and(has_found_job)) {
            job.store.extension::<StatusPaths>().note_found(&path);
        }
        reply.unwrap_or_else(|error| {
            crate::throttle::throttled!(
                error,
                job = %job.id.log_prefix(), %error, "no status: the store is unavailable"
            );
            StatusReply::Complete(Reply::store_unavailable())
        })
    }
}

/// Returns true if the reply is about a job that the viewer may see.
fn has_found_job(reply: &StatusReply) -> bool {
    match reply {
        StatusReply::Complete(reply) => reply.status != 404,
        StatusReply::Events(..) => true,
    }
}

impl IntoFuture for StatusRequest {
    type Output = StatusReply;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`execute`](Self::execute).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.execute())
    }
}

/// A job, as far as the viewer may see it.
#[derive(Debug, Clone)]
pub(super) struct VisibleJob {
    pub(super) store: Store,
    pub(super) id: JobId,
    viewer: Option<Option<String>>,
    pub(super) wait_end: WaitEnd,
}

impl VisibleJob {
    /// Polls the job in a call of its own.
    async fn fetch(&self) -> Result<Option<JobView>, Error> {
        Ok(self.filter_visible(self.store.backend().job_view(self.id.clone()).await?))
    }

    /// Polls the job together with the other local requests that wait for its changes.
    pub(super) async fn fetch_shared(
        &self,
        watch: &SharedJobPoll,
        freshness: PollFreshness,
    ) -> Result<Option<JobView>, Error> {
        Ok(self.filter_visible(watch.poll_job(&self.store, &self.id, freshness).await?))
    }

    fn filter_visible(&self, job: Option<JobView>) -> Option<JobView> {
        // A webhook is a job too, but belongs to no request.
        let job = job.filter(|job| !is_webhook_job(job))?;
        self.warn_of_owner_mismatch(&job);
        let is_visible = match &self.viewer {
            None => true,
            // A job without an owner is invisible to every viewer, even one without an identity.
            Some(viewer) => !job.owner.is_empty() && viewer.as_ref() == Some(&job.owner),
        };
        is_visible.then_some(job)
    }

    /// Warns once if the routes show jobs to owners and the job has none, or the other way round:
    /// the `DeferLayer` and the routes do not agree about users.
    fn warn_of_owner_mismatch(&self, job: &JobView) {
        match (&self.viewer, job.owner.is_empty()) {
            (None, false) => self.store.extension::<WiringRegistry>().warn_unrestricted_routes(),
            (Some(_), true) => self.store.extension::<WiringRegistry>().warn_job_without_owner(),
            _ => {}
        }
    }

    /// Returns a permit to wait for a change, if one is free.
    pub(super) fn try_wait_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.store.extension::<StatusWaiters>().0).try_acquire_owned().ok()
    }

    async fn document_reply(
        &self,
        client_tags: &IfNoneMatch,
        wait: Option<Duration>,
    ) -> Result<Reply, Error> {
        let wait_permit = wait.and_then(|_| self.try_wait_permit());
        let wait = wait.filter(|_| wait_permit.is_some());
        let Some((job, document)) = self.wait_for_change(Some(client_tags), wait).await? else {
            return Ok(not_found_reply());
        };
        let reply = if job.is_tombstone {
            gone_reply(Some(&job))
        } else if client_tags.matches(document.etag()) {
            document.not_modified_reply()
        } else {
            document.to_reply(&self.store)
        };
        Ok(with_applied_wait(reply, wait))
    }

    async fn response_reply(&self, wait: Option<Duration>) -> Result<Reply, Error> {
        let wait_permit = wait.and_then(|_| self.try_wait_permit());
        let wait = wait.filter(|_| wait_permit.is_some());
        let Some((job, _)) = self.wait_for_change(None, wait).await? else {
            return Ok(not_found_reply());
        };
        Ok(with_applied_wait(verbatim_response(&self.store, &self.id, &job), wait))
    }

    /// Returns the job at once without `wait`, and otherwise after a change, at its end, or after
    /// `wait`. Returns `None` if the job is unknown or not visible.
    ///
    /// A change is a document that differs from the client's tags, or from the first poll if the
    /// client has sent none. With `client_tags` absent, only the end of the job counts.
    async fn wait_for_change(
        &self,
        client_tags: Option<&IfNoneMatch>,
        wait: Option<Duration>,
    ) -> Result<Option<(JobView, StatusDocument)>, Error> {
        let deadline = Instant::now() + wait.unwrap_or_default();
        // Subscribes before the first poll, so that changes in between are announced.
        let watch = wait.map(|_| self.store.wakeups().subscribe_job(&self.id));
        let mut changes = watch.as_ref().map(|watch| watch.subscribe_changes());
        let (mut first_tag, mut freshness) = (None, PollFreshness::Now);
        loop {
            let job = match &watch {
                Some(watch) => self.fetch_shared(watch, freshness).await?,
                None => self.fetch().await?,
            };
            let Some(job) = job else { return Ok(None) };
            let document = StatusDocument::new(&self.store, &self.id, &job);
            let first_tag = first_tag.get_or_insert_with(|| document.etag().to_owned());
            let has_changed = client_tags.is_some_and(|tags| match tags.is_empty() {
                true => first_tag != document.etag(),
                false => !tags.matches(document.etag()),
            });
            let (Some(changes), false) = (&mut changes, has_changed || !job.state.is_pending())
            else {
                return Ok(Some((job, document)));
            };
            if Instant::now() >= deadline {
                return Ok(Some((job, document)));
            }
            let poll_at = deadline.min(Instant::now() + POLL_INTERVAL);
            freshness = tokio::select! {
                freshness = wait_for_next_poll(changes, poll_at, POLL_INTERVAL / 2) => freshness,
                () = self.wait_end.clone() => return Ok(Some((job, document))),
            };
        }
    }

    async fn cancel(&self) -> Result<Reply, Error> {
        Ok(match cancel_job(&self.store, &self.id, || self.fetch()).await? {
            Some(CancelOutcome::NotQueued(job)) if job.is_tombstone => gone_reply(Some(&job)),
            Some(outcome) if outcome.state() == JobState::Cancelled => {
                tracing::info!(job = %self.id.log_prefix(), "job cancelled");
                Reply::new(204)
            }
            Some(outcome) => {
                Reply::problem(409, problem::NOT_CANCELLABLE, "It can't be cancelled any more")
                    .with_member("state", outcome.state().as_str())
            }
            None => not_found_reply(),
        })
    }
}

/// Waits for a change until `poll_at`, and returns the required freshness of the next poll.
///
/// Without a change, the result may be up to `max_age` older than `poll_at`, so that waiters share
/// their polls.
pub(super) async fn wait_for_next_poll(
    changes: &mut watch::Receiver<u64>,
    poll_at: Instant,
    max_age: Duration,
) -> PollFreshness {
    match tokio::time::timeout_at(poll_at, changes.changed()).await {
        Ok(_) => PollFreshness::AfterChange(*changes.borrow_and_update()),
        Err(_) => PollFreshness::AfterInstant(poll_at.checked_sub(max_age).unwrap_or(poll_at)),
    }
}

fn with_applied_wait(reply: Reply, wait: Option<Duration>) -> Reply {
    match wait {
        Some(wait) => reply.header("preference-applied", format!("wait={}", wait.as_secs())),
        None => reply,
    }
}

pub(super) fn not_found_reply() -> Reply {
    Reply::problem(404, problem::JOB_NOT_FOUND, "No such deferred request")
}
