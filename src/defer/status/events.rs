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
    document::{Document, no_longer_kept},
    request::{Look, StatusAnswer, next_poll, not_found},
};
use crate::{
    error::Error,
    reply::Reply,
    store::{JobWatch, PollFreshness},
};

/// How long one stream lasts: a client comes back by itself and says what it has seen. It is less than a
/// graceful shutdown is usually given, since a server waits for its open answers.
const LONGEST: Duration = Duration::from_secs(25);

/// Time between two signs of life, so that nobody on the way takes the connection for a dead one.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Least time between two events: of a long line that moves on, each place is news.
const APART: Duration = Duration::from_millis(250);

/// Time between two looks without a message: it finds what nobody tells, such as a place that moved up, and
/// bounds a lost message. It grows, since streams are many and wait long.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// After how many ms a client comes back: when its stream is over, and when there was no room for it, since each who comes
/// back costs a look.
const AGAIN: (u32, u32) = (1_000, 10_000);

/// The body of an event stream: each item is one event or a comment. It ends with its job, or after 25 s; at once, after
/// the first event, where 4,096 wait for news of jobs in this process already.
///
/// Dropping it leaves nothing behind.
pub struct StatusEvents(BoxStream<'static, Bytes>);

impl StatusEvents {
    /// The answer to who has seen this event last.
    pub(super) async fn answer(look: Look, seen: Option<String>) -> Result<StatusAnswer, Error> {
        // Listen first, then poll: what happens in between is announced.
        let watch = look.store.wakeups().subscribe_job(&look.id);
        let news = watch.subscribe_changes();
        let Some(job) = look.shared_job(&watch, PollFreshness::Now).await? else {
            return Ok(StatusAnswer::Whole(not_found()));
        };
        if job.is_tombstone {
            return Ok(StatusAnswer::Whole(no_longer_kept(Some(&job))));
        }
        let first = Document::of(&look.store, &look.id, &job);
        let known = seen.as_deref() == Some(first.tag());
        if known && !first.is_pending() {
            // What tells an `EventSource` not to come back: there is nothing more to be told.
            return Ok(StatusAnswer::Whole(Reply::new(204)));
        }
        let now = Instant::now();
        // Without it the stream tells how it is, and ends.
        let leave = look.may_wait();
        let until = if leave.is_some() { now + LONGEST } else { now };
        let first = Some(first).filter(|_| !known);
        let again = if leave.is_some() { AGAIN.0 } else { AGAIN.1 };
        // Who has the last event may have been told another time before.
        let word = first.is_none().then(|| Bytes::from(format!("retry: {again}\n\n")));
        if let Some(word) = word.as_ref().filter(|_| leave.is_none()) {
            return Ok(StatusAnswer::Events(head(), Self(once(ready(word.clone())).boxed())));
        }
        let watching = Watching {
            look,
            watch,
            news,
            since: PollFreshness::Now,
            first,
            seen,
            told: None,
            until,
            beat: now + HEARTBEAT,
            pace: LOOK.0,
            again,
            _leave: leave,
        };
        let items = unfold(Some(watching), |watching| async {
            let mut watching = watching?;
            let (item, goes_on) = watching.next().await?;
            Some((item, goes_on.then_some(watching)))
        });
        Ok(StatusAnswer::Events(head(), Self(iter(word).chain(items).boxed())))
    }
}

fn head() -> Reply {
    Reply::new(200)
        .field("content-type", "text/event-stream")
        .field("cache-control", "no-store")
        .field("vary", "accept")
        // nginx would collect the events until they fill a buffer.
        .field("x-accel-buffering", "no")
}

struct Watching {
    look: Look,
    watch: Arc<JobWatch>,
    news: watch::Receiver<u64>,
    /// How old the next answer may be.
    since: PollFreshness,
    first: Option<Document>,
    /// The last event that was sent.
    seen: Option<String>,
    /// When that was.
    told: Option<Instant>,
    until: Instant,
    beat: Instant,
    pace: Duration,
    /// After how many ms a client that has lost the stream comes back.
    again: u32,
    _leave: Option<OwnedSemaphorePermit>,
}

impl Watching {
    /// The next item, and whether there are more after it.
    async fn next(&mut self) -> Option<(Bytes, bool)> {
        if let Some(first) = self.first.take() {
            return Some(self.tell(&first));
        }
        if let Some(told) = self.told.take() {
            tokio::time::sleep_until((told + APART).min(self.until)).await;
        }
        while Instant::now() < self.until {
            match self.look.shared_job(&self.watch, self.since).await {
                Ok(Some(job)) if !job.is_tombstone => {
                    let document = Document::of(&self.look.store, &self.look.id, &job);
                    if self.seen.as_deref() != Some(document.tag()) {
                        return Some(self.tell(&document));
                    }
                }
                // Evicted, or forgotten, meanwhile.
                Ok(_) => return None,
                Err(error) => {
                    crate::throttle::throttled!(warn, job = ?self.look.id, %error, "a look failed");
                }
            }
            let look = Instant::now() + self.pace;
            self.pace = (self.pace * 2).min(LOOK.1);
            let moment = look.min(self.beat).min(self.until);
            self.since = next_poll(&mut self.news, moment, self.pace / 2).await;
            let now = Instant::now();
            if now >= self.beat && now < self.until {
                self.beat = now + HEARTBEAT;
                return Some((Bytes::from_static(b":\n\n"), true));
            }
        }
        None
    }

    fn tell(&mut self, document: &Document) -> (Bytes, bool) {
        (self.pace, self.told) = (LOOK.0, Some(Instant::now()));
        let (tag, value) = (document.tag(), document.value());
        self.seen = Some(tag.to_owned());
        // JSON on one line: it has no line ends outside of its escapes.
        let event = format!("id: {tag}\nretry: {}\ndata: {value}\n\n", self.again);
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
