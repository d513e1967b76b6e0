//! The worker and the status on the embedded store, with tokio's clock stopped.

mod alone;
mod callbacks;
mod jobs;
mod outcomes;
mod status;
mod takeover;
mod trouble;

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    Answer, DeferWorker, Kept, Ran, Replayer,
    envelope::{At, write_request},
};
use crate::{
    gate::{Head, Replay},
    key::Key,
    store::{Caps, Enqueue, Enqueued, JobId, JobPolicy, JobState, JobView, Store},
};

const SECOND: Duration = Duration::from_secs(1);

/// Routes that note what runs, by target; what they do is in the target too.
#[derive(Clone, Default)]
struct Routes(Arc<Mutex<HashMap<String, u32>>>);

impl Routes {
    /// How often it ran.
    fn runs(&self, target: &str) -> u32 {
        self.0.lock().get(target).copied().unwrap_or(0)
    }
}

impl Replayer for Routes {
    fn replay(&self, head: Head, body: Bytes, marker: Replay, _: usize) -> BoxFuture<'static, Ran> {
        *self.0.lock().entry(head.target.clone()).or_default() += 1;
        assert!(!head.target.ends_with("/panic"), "outside of the future");
        let long = head.target.ends_with("/long");
        async move {
            // As the job's own lock does when it lets the run pass.
            marker.pass(&key_of(&head.target));
            Ran::Answered(Answer {
                status: 200,
                headers: Vec::new(),
                body: if long { Kept::TooLong } else { Kept::Body(body) },
            })
        }
        .boxed()
    }
}

/// The lock of `/<name>/..` is `<name>`.
fn key_of(target: &str) -> Key {
    Key::custom(target.split(['/', '?']).nth(1).expect("a path"))
}

/// A worker that runs until it is told to stop.
struct Working {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Working {
    fn on(store: &Store, routes: &Routes) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = DeferWorker::on(store, routes.clone());
        let task = tokio::spawn(worker.run(async {
            if stopped.await.is_err() {
                pending::<()>().await;
            }
        }));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("it ends well");
    }

    /// As in a crash: nothing is settled, nobody is told.
    async fn die(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
    }
}

/// A job that runs once.
async fn put_off(store: &Store, target: &str) -> JobId {
    put_off_request(store, Head::new("POST", target, Vec::new(), None), b"body").await
}

/// As [`put_off`], any request.
async fn put_off_request(store: &Store, head: Head, body: &[u8]) -> JobId {
    let key = key_of(&head.target);
    let id = JobId::new(&key);
    let at = At { store, id: &id, lock: &key };
    let call = Enqueue {
        envelope: write_request(at, head.clone(), head.headers, Vec::new(), 1, body),
        id,
        key,
        policy: JobPolicy::default(),
        record: None,
        merge: None,
        caps: Caps {
            resource_jobs: 100,
            resource_bytes: 10_000,
            shard_jobs: 100,
            shard_bytes: 10_000,
        },
        owner: String::new(),
    };
    let id = call.id.clone();
    let stored = store.backend().enqueue(call).await;
    assert!(matches!(stored, Ok(Enqueued::Stored { .. })), "{stored:?}");
    id
}

async fn look(store: &Store, id: &JobId) -> JobView {
    let job = store.backend().job(id.clone()).await;
    job.expect("the store is there").expect("it is kept")
}

/// Waits until nothing more will happen to it; how it ended.
async fn ended(store: &Store, id: &JobId) -> JobState {
    let state = async {
        loop {
            let job = look(store, id).await;
            if !job.state.is_pending() {
                return job.state;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // Of the stopped clock: far beyond every lease, watch and backoff.
    tokio::time::timeout(Duration::from_secs(600), state).await.expect("the job ends")
}

/// Lets everything that can happen now happen: with the clock stopped, that is when a sleep ends.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}
