//! The crate bullmq-official: the scripts of bullmq, called from Rust.

use std::{ops::Range, sync::Arc, time::Duration};

use bullmq::{
    BulkJob, Job, Queue as Inner, QueueOptions, Worker, WorkerOptions,
    options::RedisConnectionOptions,
};

use super::{
    NAME, Queue,
    plan::Plan,
    seen::{Body, Seen},
};
use crate::outcome::Outcome;

pub(super) struct Bullmq {
    queue: Inner,
    bytes: usize,
    delay: Option<Duration>,
}

fn connection(port: u16) -> RedisConnectionOptions {
    RedisConnectionOptions::new().url(format!("redis://127.0.0.1:{port}"))
}

impl Queue for Bullmq {
    type Work = Worker;

    async fn pushes(plan: &Plan) -> Outcome<Self> {
        let options = QueueOptions::new().connection(connection(plan.port));
        let queue = Inner::with_options(NAME, options).await?;
        let delay = (plan.delay > 0).then(|| Duration::from_millis(plan.delay));
        Ok(Self { queue, bytes: plan.bytes, delay })
    }

    async fn push(&self, job: u64) -> Outcome<Option<u64>> {
        let mut add = self.queue.add(NAME, Body::new(job, self.bytes));
        if let Some(delay) = self.delay {
            add = add.delay(delay);
        }
        add.await?;
        Ok(None)
    }

    async fn push_all(&self, jobs: Range<u64>) -> Outcome<Option<u64>> {
        let jobs = jobs.map(|job| BulkJob::new(NAME, Body::new(job, self.bytes)));
        self.queue.add_bulk(jobs.collect()).await?;
        Ok(None)
    }

    async fn works(plan: &Plan, seen: Arc<Seen>) -> Outcome<Worker> {
        let options =
            WorkerOptions::new().connection(connection(plan.port)).concurrency(plan.tasks);
        let handler = move |job: Job, _| {
            let seen = Arc::clone(&seen);
            async move {
                let body: Body = serde_json::from_value(job.data().clone())?;
                seen.started(&body);
                Ok(serde_json::Value::Null)
            }
        };
        Ok(Worker::with_options(NAME, handler, options).await?)
    }
}
