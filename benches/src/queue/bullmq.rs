//! bullmq-official: the scripts of bullmq, called from Rust.

use std::{ops::Range, sync::Arc, time::Duration};

use bullmq::{
    BulkJob, Job, Queue as Inner, QueueOptions, Worker, WorkerOptions,
    options::RedisConnectionOptions,
};

use super::{
    QUEUE_NAME, QueueContender,
    queue_plan::QueuePlan,
    run_recorder::{JobBody, RunRecorder},
};
use crate::bench_result::BenchResult;

pub(super) struct BullmqQueue {
    queue: Inner,
    body_bytes: usize,
    delay: Option<Duration>,
}

fn connection_options(port: u16) -> RedisConnectionOptions {
    RedisConnectionOptions::new().url(format!("redis://127.0.0.1:{port}"))
}

impl QueueContender for BullmqQueue {
    type WorkerHandle = Worker;

    async fn connect_producer(plan: &QueuePlan) -> BenchResult<Self> {
        let options = QueueOptions::new().connection(connection_options(plan.redis_port));
        let queue = Inner::with_options(QUEUE_NAME, options).await?;
        let delay = (plan.delay > 0).then(|| Duration::from_millis(plan.delay));
        Ok(Self { queue, body_bytes: plan.body_bytes, delay })
    }

    async fn push(&self, job: u64) -> BenchResult<Option<u64>> {
        let mut add = self.queue.add(QUEUE_NAME, JobBody::new(job, self.body_bytes));
        if let Some(delay) = self.delay {
            add = add.delay(delay);
        }
        add.await?;
        Ok(None)
    }

    async fn push_batch(&self, jobs: Range<u64>) -> BenchResult<Option<u64>> {
        let jobs = jobs.map(|job| BulkJob::new(QUEUE_NAME, JobBody::new(job, self.body_bytes)));
        self.queue.add_bulk(jobs.collect()).await?;
        Ok(None)
    }

    async fn start_worker(plan: &QueuePlan, recorder: Arc<RunRecorder>) -> BenchResult<Worker> {
        let options = WorkerOptions::new()
            .connection(connection_options(plan.redis_port))
            .concurrency(plan.concurrency);
        let handler = move |job: Job, _| {
            let recorder = Arc::clone(&recorder);
            async move {
                let body: JobBody = serde_json::from_value(job.data().clone())?;
                recorder.record_start(&body);
                Ok(serde_json::Value::Null)
            }
        };
        Ok(Worker::with_options(QUEUE_NAME, handler, options).await?)
    }
}
