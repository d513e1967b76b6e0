//! Stream of status documents, one at each change, as server-sent events.

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
    store::{JobWatch, PollFreshness},
};

/// Duration of one stream. Clients reconnect automatically with their last event id. It is shorter
/// than the usual time for a graceful shutdown, since a server waits for open responses.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(25);

/// Interval of comments that keep intermediaries from closing the connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Least time between two events: in a long queue that advances, each position is a change.
const MIN_EVENT_INTERVAL: Duration = Duration::from_millis(250);

/// Interval of polls without a wake-up. They find changes that are not announced, such as a new
/// queue position, and bound the cost of a lost wake-up. The interval grows, since streams are many
/// and last long.
const POLL_INTERVAL_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Reconnect delays in milliseconds: after a stream has ended, and without capacity for one. The
/// latter is longer, since each reconnect costs a poll.
const RECONNECT_DELAYS_MS: (u32, u32) = (1_000, 10_000);

/// Body of an event stream. Each item is one event or a comment.
///
/// The stream ends with its job, or after 25 s. If 4,096 requests of this process wait for changes
/// already, it ends after the first event. It can be dropped at any time.
pub struct StatusEvents(BoxStream<'static, Bytes>);

impl StatusEvents {
    /// Opens a stream for a client that has received the event `seen` last.
    pub(super) async fn open_stream(
        look: VisibleJob,
        seen: Option<String>,
    ) -> Result<StatusReply, Error> {
        // Subscribes before the poll, so that changes in between are announced.
        let watch = look.store.wakeups().subscribe_job(&look.id);
        let news = watch.subscribe_changes();
        let Some(job) = look.fetch_shared(&watch, PollFreshness::Now).await? else {
            return Ok(StatusReply::Complete(not_found_reply()));
        };
        if job.is_tombstone {
            return Ok(StatusReply::Complete(gone_reply(Some(&job))));
        }
        let first = StatusDocument::new(&look.store, &look.id, &job);
        let known = seen.as_deref() == Some(first.etag());
        if known && !first.is_pending() {
            // A 204 stops an `EventSource` from reconnecting: there are no more events.
            return Ok(StatusReply::Complete(Reply::new(204)));
        }
        let now = Instant::now();
        // Without a permit, the stream sends the current state and ends.
        let leave = look.try_wait_permit();
        let until = if leave.is_some() { now + MAX_STREAM_DURATION } else { now };
        let first = Some(first).filter(|_| !known);
        let again = if leave.is_some() { RECONNECT_DELAYS_MS.0 } else { RECONNECT_DELAYS_MS.1 };
        // A client that has the latest event may have been given another delay before.
        let word = first.is_none().then(|| Bytes::from(format!("retry: {again}\n\n")));
        if let Some(word) = word.as_ref().filter(|_| leave.is_none()) {
            return Ok(StatusReply::Events(
                event_stream_head(),
                Self(once(ready(word.clone())).boxed()),
            ));
        }
        let watching = EventStreamState {
            job: look,
            watch,
            changes: news,
            freshness: PollFreshness::Now,
            first_document: first,
            last_sent_id: seen,
            last_sent_at: None,
            ends_at: until,
            next_keep_alive: now + KEEP_ALIVE_INTERVAL,
            poll_interval: POLL_INTERVAL_RANGE.0,
            reconnect_delay_ms: again,
            _wait_permit: leave,
        };
        let items = unfold(Some(watching), |watching| async {
            let mut watching = watching?;
            let (item, goes_on) = watching.next_item().await?;
            Some((item, goes_on.then_some(watching)))
        });
        Ok(StatusReply::Events(event_stream_head(), Self(iter(word).chain(items).boxed())))
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
    watch: Arc<JobWatch>,
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
        if let Some(told) = self.last_sent_at.take() {
            tokio::time::sleep_until((told + MIN_EVENT_INTERVAL).min(self.ends_at)).await;
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
                        job = ?self.job.id, %error, "poll of the job failed"
                    );
                }
            }
            let look = Instant::now() + self.poll_interval;
            self.poll_interval = (self.poll_interval * 2).min(POLL_INTERVAL_RANGE.1);
            let moment = look.min(self.next_keep_alive).min(self.ends_at);
            self.freshness =
                wait_for_next_poll(&mut self.changes, moment, self.poll_interval / 2).await;
            let now = Instant::now();
            if now >= self.next_keep_alive && now < self.ends_at {
                self.next_keep_alive = now + KEEP_ALIVE_INTERVAL;
                return Some((Bytes::from_static(b":\n\n"), true));
            }
        }
        None
    }

    fn format_event(&mut self, document: &StatusDocument) -> (Bytes, bool) {
        (self.poll_interval, self.last_sent_at) = (POLL_INTERVAL_RANGE.0, Some(Instant::now()));
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
