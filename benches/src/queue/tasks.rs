//! `store.queue`: tasks with a payload of a type, and a worker that takes a function.

use std::{future, ops::Range, sync::Arc, time::Duration};

use lockgate::queue::{Failure, Queue as Inner, Task};
use tokio::{runtime::Builder, task::JoinHandle};

use super::{
    NAME, Queue,
    left::Left,
    plan::Plan,
    seen::{Body, Seen},
};
use crate::{contestant::connect_store, outcome::Outcome};

pub(super) struct Tasks {
    queue: Inner<Body>,
    bytes: usize,
    delay: Option<Duration>,
}

impl Queue for Tasks {
    type Work = JoinHandle<()>;

    async fn pushes(plan: &Plan) -> Outcome<Self> {
        let queue = connect_store(plan.port).await?.queue(NAME);
        let delay = (plan.delay > 0).then(|| Duration::from_millis(plan.delay));
        Ok(Self { queue, bytes: plan.bytes, delay })
    }

    async fn push(&self, job: u64) -> Outcome<Option<u64>> {
        let push = self.queue.push(&Body::new(job, self.bytes));
        match self.delay {
            None => push.await?,
            Some(delay) => push.delay(delay).await?,
        };
        Ok(None)
    }

    async fn push_all(&self, _: Range<u64>) -> Outcome<Option<u64>> {
        Err("tasks come one by one; those of a process go together".into())
    }

    async fn works(plan: &Plan, seen: Arc<Seen>) -> Outcome<JoinHandle<()>> {
        let queue: Inner<Body> = connect_store(plan.port).await?.queue(NAME);
        let worker = queue.worker(move |task: Task<Body>| {
            seen.started(&task.payload);
            future::ready(Ok::<(), Failure>(()))
        });
        let worker = worker.concurrency(plan.tasks);
        Ok(tokio::spawn(worker.run(future::pending())))
    }
}

/// By what the queue says of itself.
pub(super) fn left(port: u16) -> Outcome<Left> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let stats = runtime.block_on(async {
        let queue: Inner<Body> = connect_store(port).await?.queue(NAME);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(queue.stats().await?)
    })?;
    let other = stats.pushed - stats.waiting - stats.running - stats.done;
    Ok(Left { waiting: stats.waiting, running: stats.running, done: stats.done, other })
}
