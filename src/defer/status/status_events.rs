//! The document at each change, as server-sent events.

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

/// How long one stream lasts: a client comes back by itself and says what it has seen. It is less than a
/// graceful shutdown is usually given, since a server waits for its open answers.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(25);

/// Time between two signs of life, so that nobody on the way takes the connection for a dead one.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Least time between two events: of a long line that moves on, each place is news.
const MIN_EVENT_INTERVAL: Duration = Duration::from_millis(250);

/// Time between two looks without a message: it finds what nobody tells, such as a place that moved up, and
/// bounds a lost message. It grows, since streams are many and wait long.
const POLL_INTERVAL_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// After how many ms a client comes back: when its stream is over, and when there was no room for it, since each who comes
/// back costs a look.
const RECONNECT_DELAYS_MS: (u32, u32) = (1_000, 10_000);

/// The body of an event stream: each item is one event or a comment. It ends with its job, or after 25 s; at once, after
/// the first event, where 4,096 wait for news of jobs in this process already.
///
/// Dropping it leaves nothing behind.
pub struct StatusEvents(BoxStream<'static, Bytes>);

impl StatusEvents {
    /// The answer to who has seen this event last.
    pub(super) async fn open_stream(
        look: VisibleJob,
        seen: Option<String>,
    ) -> Result<StatusReply, Error> {
        // Listen first, then poll: what happens in between is announced.
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
            // What tells an `EventSource` not to come back: there is nothing more to be told.
            return Ok(StatusReply::Complete(Reply::new(204)));
        }
        let now = Instant::now();
        // Without it the stream tells how it is, and ends.
        let leave = look.try_wait_permit();
        let until = if leave.is_some() { now + MAX_STREAM_DURATION } else { now };
        let first = Some(first).filter(|_| !known);
        let again = if leave.is_some() { RECONNECT_DELAYS_MS.0 } else { RECONNECT_DELAYS_MS.1 };
        // Who has the last event may have been told another time before.
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
        // nginx would collect the events until they fill a buffer.
        .header("x-accel-buffering", "no")
}

struct EventStreamState {
    job: VisibleJob,
    watch: Arc<JobWatch>,
    changes: watch::Receiver<u64>,
    /// How old the next answer may be.
    freshness: PollFreshness,
    first_document: Option<StatusDocument>,
    /// The last event that was sent.
    last_sent_id: Option<String>,
    /// When that was.
    last_sent_at: Option<Instant>,
    ends_at: Instant,
    next_keep_alive: Instant,
    poll_interval: Duration,
    /// After how many ms a client that has lost the stream comes back.
    reconnect_delay_ms: u32,
    _wait_permit: Option<OwnedSemaphorePermit>,
}

impl EventStreamState {
    /// The next item, and whether there are more after it.
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
                // Evicted, or forgotten, meanwhile.
                Ok(_) => return None,
                Err(error) => {
                    crate::throttle::throttled!(warn, job = ?self.job.id, %error, "a look failed");
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
        // JSON on one line: it has no line ends outside of its escapes.
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
