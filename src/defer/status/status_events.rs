//! `StatusEvents`: a stream of status documents, one at each change, as server-sent events.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    Stream,
    future::ready,
    stream::{BoxStream, StreamExt as _, iter, once, unfold},
};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

use super::{
    status_document::{StatusDocument, gone_reply},
    status_request::{StatusReply, VisibleJob, not_found_reply, wait_for_next_poll},
};
use crate::{
    error::Error,
    reply::Reply,
    store::{PollFreshness, SharedJobPoll},
};

/// Duration of one stream. Clients reconnect automatically with their last event id. It is shorter
/// than the usual time for a graceful shutdown, since a server waits for open responses.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(25);

/// Interval of comments that keep intermediaries from closing the connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Least time between two events: in a long queue that advances, each position is a change.
const MIN_EVENT_INTERVAL: Duration = Duration::from_millis(250);

/// First interval of polls without a wake-up. They find changes that are not announced, such as a
/// new queue position, and bound the cost of a lost wake-up. The interval grows, since streams are
/// many and last long.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest interval of polls without a wake-up.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Reconnect delay in milliseconds after a stream has ended.
const RECONNECT_DELAY_MS: u32 = 1_000;

/// Reconnect delay in milliseconds without capacity for a stream. It is longer, since each
/// reconnect costs a poll.
const OVERLOAD_RECONNECT_DELAY_MS: u32 = 10_000;

/// Body of an event stream. Each item is one event or a comment.
///
/// The stream ends with its job, after 25 s, or when its server
/// [drains](super::StatusRequest::end_waits_at). If 4,096 requests of this process wait for changes
/// already, it ends after the first event. It can be dropped at any time.
pub struct StatusEvents(BoxStream<'static, Bytes>);

impl StatusEvents {
    /// Opens a stream for a client that has received the event `last_event_id` last.
    pub(super) async fn open_stream(
        job: VisibleJob,
        last_event_id: Option<String>,
    ) -> Result<StatusReply, Error> {
        // Subscribes before the poll, so that changes in between are announced.
        let watch = job.store.wakeups().subscribe_job(&job.id);
        let changes = watch.subscribe_changes();
        let Some(view) = job.fetch_shared(&watch, PollFreshness::Now).await? else {
            return Ok(StatusReply::Complete(not_found_reply()));
        };
        if view.is_tombstone {
            return Ok(StatusReply::Complete(gone_reply(Some(&view))));
        }
        let document = StatusDocument::new(&job.store, &job.id, &view);
        let is_current = last_event_id.as_deref() == Some(document.etag());
        if is_current && !document.is_pending() {
            // A 204 stops an `EventSource` from reconnecting: there are no more events.
            return Ok(StatusReply::Complete(Reply::new(204)));
        }
        let now = Instant::now();
        // Without a permit, the stream sends the current state and ends.
        let wait_permit = job.try_wait_permit();
        let (ends_at, reconnect_delay_ms) = match &wait_permit {
            Some(_) => (now + MAX_STREAM_DURATION, RECONNECT_DELAY_MS),
            None => (now, OVERLOAD_RECONNECT_DELAY_MS),
        };
        let first_document = Some(document).filter(|_| !is_current);
        // A client that has the latest event may have been given another delay before.
        let retry_event = first_document
            .is_none()
            .then(|| Bytes::from(format!("retry: {reconnect_delay_ms}\n\n")));
        if let Some(event) = retry_event.clone().filter(|_| wait_permit.is_none()) {
            return Ok(StatusReply::Events(event_stream_head(), Self(once(ready(event)).boxed())));
        }
        let wait_end = job.wait_end.clone();
        let state = EventStreamState {
            job,
            watch,
            changes,
            freshness: PollFreshness::Now,
            first_document,
            last_sent_id: last_event_id,
            last_sent_at: None,
            ends_at,
            next_keep_alive: now + KEEP_ALIVE_INTERVAL,
            poll_interval: MIN_POLL_INTERVAL,
            reconnect_delay_ms,
            _wait_permit: wait_permit,
        };
        let items = unfold(Some(state), |state| async {
            let mut state = state?;
            let (item, has_more) = state.next_item().await?;
            Some((item, has_more.then_some(state)))
        });
        let items = iter(retry_event).chain(items).take_until(wait_end);
        Ok(StatusReply::Events(event_stream_head(), Self(items.boxed())))
    }
}

fn event_stream_head() -> Reply {
    Reply::new(200)
        .header("content-type", "text/event-stream")
        .header("cache-control", "no-store")
        .header("vary", "accept")
        // Stops nginx from buffering the events.
        .header("x-accel-buffering", "no")
}

struct EventStreamState {
    job: VisibleJob,
    watch: Arc<SharedJobPoll>,
    changes: watch::Receiver<u64>,
    /// Required freshness of the next poll.
    freshness: PollFreshness,
    first_document: Option<StatusDocument>,
    /// Id of the last event sent.
    last_sent_id: Option<String>,
    /// Time at which it was sent.
    last_sent_at: Option<Instant>,
    ends_at: Instant,
    next_keep_alive: Instant,
    poll_interval: Duration,
    /// Reconnect delay of a client that has lost the stream.
    reconnect_delay_ms: u32,
    _wait_permit: Option<OwnedSemaphorePermit>,
}

impl EventStreamState {
    /// Returns the next item, and true if more may follow.
    async fn next_item(&mut self) -> Option<(Bytes, bool)> {
        if let Some(first) = self.first_document.take() {
            return Some(self.format_event(&first));
        }
        if let Some(sent_at) = self.last_sent_at.take() {
            tokio::time::sleep_until((sent_at + MIN_EVENT_INTERVAL).min(self.ends_at)).await;
        }
        while Instant::now() < self.ends_at {
            match self.job.fetch_shared(&self.watch, self.freshness).await {
                Ok(Some(job)) if !job.is_tombstone => {
                    let document = StatusDocument::new(&self.job.store, &self.job.id, &job);
                    if self.last_sent_id.as_deref() != Some(document.etag()) {
                        return Some(self.format_event(&document));
                    }
                }
                // The job was evicted or deleted meanwhile.
                Ok(_) => return None,
                Err(error) => {
                    crate::throttle::throttled!(
                        warn,
                        job = %self.job.id.log_prefix(), %error, "poll of the job failed"
                    );
                }
            }
            let next_poll_at = Instant::now() + self.poll_interval;
            self.poll_interval = (self.poll_interval * 2).min(MAX_POLL_INTERVAL);
            let wake_at = next_poll_at.min(self.next_keep_alive).min(self.ends_at);
            self.freshness =
                wait_for_next_poll(&mut self.changes, wake_at, self.poll_interval / 2).await;
            let now = Instant::now();
            if now >= self.next_keep_alive && now < self.ends_at {
                self.next_keep_alive = now + KEEP_ALIVE_INTERVAL;
                return Some((Bytes::from_static(b":\n\n"), true));
            }
        }
        None
    }

    fn format_event(&mut self, document: &StatusDocument) -> (Bytes, bool) {
        (self.poll_interval, self.last_sent_at) = (MIN_POLL_INTERVAL, Some(Instant::now()));
        let (tag, value) = (document.etag(), document.to_json());
        self.last_sent_id = Some(tag.to_owned());
        // The JSON is one line: line ends occur only as escapes.
        let event = format!("id: {tag}\nretry: {}\ndata: {value}\n\n", self.reconnect_delay_ms);
        (event.into(), document.is_pending())
    }
}

impl Stream for StatusEvents {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for StatusEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusEvents").finish_non_exhaustive()
    }
}
