//! One request to the status resource, and its answer.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::{
    document::{Document, no_longer_kept, verbatim},
    events::StatusEvents,
    fields::Known,
};
use crate::{
    defer::{
        callback::is_callback,
        jobs::{Cancelled, cancel},
    },
    error::Error,
    reply::{Reply, problem},
    store::{JobId, JobState, JobView, JobWatch, PollFreshness, Store},
};

/// Longest time between two looks while waiting: bounds a lost message.
const LOOK: Duration = Duration::from_secs(1);

/// Most that wait at once in this process to be told of a change. Each of them looks now and then, by the way that locks
/// and runs take too; whoever comes then is told how it is, and to come again.
const WATCHERS: usize = 4096;

struct Watchers(Arc<Semaphore>);

impl Default for Watchers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WATCHERS)))
    }
}

/// One request to the status resource.
#[derive(Debug)]
#[must_use = "it is answered by `StatusRequest::answer`"]
pub struct StatusRequest {
    pub(super) store: Store,
    pub(super) id: Option<JobId>,
    pub(super) what: What,
    pub(super) wait: Option<Duration>,
    pub(super) asks: Asks,
}

/// Who asks.
pub(super) enum Asks {
    /// It does not count.
    Anybody,
    /// Nobody sees nothing.
    Known(Option<String>),
    ToBeFound(BoxFuture<'static, Option<String>>),
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Anybody) { "Anybody" } else { "Somebody" })
    }
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum What {
    Document { known: Known },
    Response,
    Events { seen: Option<String> },
    Cancel,
}

/// The answer to a request to the status resource.
#[derive(Debug)]
#[non_exhaustive]
pub enum StatusAnswer {
    /// All of it.
    Whole(Reply),
    /// Status and fields, and a body that comes bit by bit.
    Events(Reply, StatusEvents),
}

impl StatusRequest {
    /// Asks the store. Cancel safe.
    pub async fn answer(self) -> StatusAnswer {
        let Some(id) = self.id.clone() else {
            return StatusAnswer::Whole(not_found());
        };
        // Before the store is asked, whatever there is: how long it takes tells nobody whether there is a job.
        let asker = match self.asks {
            Asks::Anybody => None,
            Asks::Known(asker) => Some(asker),
            Asks::ToBeFound(asker) => Some(asker.await),
        };
        let look = Look { store: self.store, id, asker };
        let answer = match self.what {
            What::Cancel => look.cancel().await.map(StatusAnswer::Whole),
            What::Events { seen } => StatusEvents::answer(look.clone(), seen).await,
            What::Document { known } => {
                look.document(&known, self.wait).await.map(StatusAnswer::Whole)
            }
            What::Response => look.response(self.wait).await.map(StatusAnswer::Whole),
        };
        answer.unwrap_or_else(|error| {
            crate::throttle::throttled!(error, job = ?look.id, %error, "no status: store away");
            StatusAnswer::Whole(Reply::store_away())
        })
    }
}

/// A job, as far as the one who asks may see it.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) store: Store,
    pub(super) id: JobId,
    asker: Option<Option<String>>,
}

impl Look {
    /// A poll of its own.
    async fn job(&self) -> Result<Option<JobView>, Error> {
        Ok(self.seen(self.store.backend().job_view(self.id.clone()).await?))
    }

    /// A poll that is shared with others that wait for news of the job.
    pub(super) async fn shared_job(
        &self,
        watch: &JobWatch,
        since: PollFreshness,
    ) -> Result<Option<JobView>, Error> {
        Ok(self.seen(watch.poll_job(&self.store, &self.id, since).await?))
    }

    fn seen(&self, job: Option<JobView>) -> Option<JobView> {
        let sees = |job: &JobView| match &self.asker {
            None => true,
            // A job of nobody is nobody's, whoever asks without a name.
            Some(asker) => !job.owner.is_empty() && asker.as_ref() == Some(&job.owner),
        };
        // A callback is a job too, but nobody's request.
        job.filter(|job| sees(job) && !is_callback(job))
    }

    /// Leave to wait for a change.
    pub(super) fn may_wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.store.extension::<Watchers>().0).try_acquire_owned().ok()
    }

    async fn document(&self, known: &Known, wait: Option<Duration>) -> Result<Reply, Error> {
        let leave = wait.and_then(|_| self.may_wait());
        let wait = wait.filter(|_| leave.is_some());
        let Some((job, document)) = self.changed(Some(known), wait).await? else {
            return Ok(not_found());
        };
        let reply = if job.is_tombstone {
            no_longer_kept(Some(&job))
        } else if known.has(document.tag()) {
            document.unchanged()
        } else {
            document.reply(&self.store)
        };
        Ok(applied(reply, wait))
    }

    async fn response(&self, wait: Option<Duration>) -> Result<Reply, Error> {
        let leave = wait.and_then(|_| self.may_wait());
        let wait = wait.filter(|_| leave.is_some());
        let Some((job, _)) = self.changed(None, wait).await? else {
            return Ok(not_found());
        };
        Ok(applied(verbatim(&self.store, &self.id, &job), wait))
    }

    /// The job at once, or when it is no longer as the client knows it: as it was at first, if he does not
    /// say. Where it does not matter what is known, when it has ended. `None` if there is none to be seen.
    async fn changed(
        &self,
        known: Option<&Known>,
        wait: Option<Duration>,
    ) -> Result<Option<(JobView, Document)>, Error> {
        let until = Instant::now() + wait.unwrap_or_default();
        // Listen first, then poll: what happens in between is announced.
        let watch = wait.map(|_| self.store.wakeups().subscribe_job(&self.id));
        let mut news = watch.as_ref().map(|watch| watch.subscribe_changes());
        let (mut first, mut since) = (None, PollFreshness::Now);
        loop {
            let job = match &watch {
                Some(watch) => self.shared_job(watch, since).await?,
                None => self.job().await?,
            };
            let Some(job) = job else { return Ok(None) };
            let document = Document::of(&self.store, &self.id, &job);
            let first = first.get_or_insert_with(|| document.tag().to_owned());
            let is_news = known.is_some_and(|known| match known.is_empty() {
                true => first != document.tag(),
                false => !known.has(document.tag()),
            });
            let (Some(news), false) = (&mut news, is_news || !job.state.is_pending()) else {
                return Ok(Some((job, document)));
            };
            if Instant::now() >= until {
                return Ok(Some((job, document)));
            }
            since = next_poll(news, until.min(Instant::now() + LOOK), LOOK / 2).await;
        }
    }

    async fn cancel(&self) -> Result<Reply, Error> {
        Ok(match cancel(&self.store, &self.id, || self.job()).await? {
            Some(Cancelled::Seen(job)) if job.is_tombstone => no_longer_kept(Some(&job)),
            Some(other) if other.state() == JobState::Cancelled => {
                tracing::info!(job = ?self.id, "deferred request cancelled");
                Reply::new(204)
            }
            Some(other) => {
                Reply::problem(409, problem::NOT_CANCELLABLE, "It can't be cancelled any more")
                    .member("state", other.state().as_str())
            }
            None => not_found(),
        })
    }
}

/// Waits for a change, but not beyond this moment: how old an answer may be that is wanted then. One that nobody has
/// announced may be as old as `age`, so that those that wait share the polls that only make sure.
pub(super) async fn next_poll(
    news: &mut watch::Receiver<u64>,
    moment: Instant,
    age: Duration,
) -> PollFreshness {
    match tokio::time::timeout_at(moment, news.changed()).await {
        Ok(_) => PollFreshness::AfterChange(*news.borrow_and_update()),
        Err(_) => PollFreshness::AfterInstant(moment.checked_sub(age).unwrap_or(moment)),
    }
}

fn applied(reply: Reply, wait: Option<Duration>) -> Reply {
    match wait {
        Some(wait) => reply.field("preference-applied", format!("wait={}", wait.as_secs())),
        None => reply,
    }
}

pub(super) fn not_found() -> Reply {
    Reply::problem(404, problem::UNKNOWN_JOB, "No such deferred request")
}
