//! apalis-redis. Its pushes take `&mut self`, so each uses a clone, which shares the connection.

use std::{ops::Range, sync::Arc, time::Duration};

use apalis_core::{
    backend::{TaskSink as _, ext::BackendExt as _},
    error::BoxDynError,
    task::builder::TaskBuilder,
    worker::{builder::WorkerBuilder, ext::parallelize::ParallelizeExt as _},
};
use apalis_redis::{Config, RedisStorage};
use tokio::task::JoinHandle;

use super::{
    QUEUE_NAME, QueueContender,
    queue_plan::QueuePlan,
    run_recorder::{JobBody, RunRecorder},
};
use crate::bench_result::BenchResult;

/// Worker name. It is part of the key under which `count_jobs` finds running jobs; further workers
/// need other names.
const WORKER_NAME: &str = "bench-worker";

pub(super) struct ApalisQueue {
    storage: RedisStorage<JobBody>,
    body_bytes: usize,
    delay: Option<Duration>,
}

async fn connect_storage(plan: &QueuePlan) -> BenchResult<RedisStorage<JobBody>> {
    let connection =
        apalis_redis::connect(format!("redis://127.0.0.1:{}", plan.redis_port)).await?;
    // It fetches a batch into the process. The batch must not be smaller than the concurrency.
    let config = Config::default()
        .queue(QUEUE_NAME)
        .batch_size(plan.settings.fetch_batch_size.max(plan.concurrency));
    Ok(RedisStorage::new(connection).with_config(config))
}

impl QueueContender for ApalisQueue {
    type WorkerHandle = JoinHandle<()>;

    async fn connect_producer(plan: &QueuePlan) -> BenchResult<Self> {
        let delay = (plan.delay > 0).then(|| Duration::from_millis(plan.delay));
        Ok(Self { storage: connect_storage(plan).await?, body_bytes: plan.body_bytes, delay })
    }

    async fn push(&self, job: u64) -> BenchResult<Option<u64>> {
        let mut storage = self.storage.clone();
        let body = JobBody::new(job, self.body_bytes);
        match self.delay {
            None => storage.push(body).await.map_err(|error| error.to_string())?,
            Some(delay) => {
                let task = TaskBuilder::new(body).run_after(delay).build();
                storage.push_task(task).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(None)
    }

    async fn push_batch(&self, jobs: Range<u64>) -> BenchResult<Option<u64>> {
        let mut storage = self.storage.clone();
        let jobs = jobs.map(|job| JobBody::new(job, self.body_bytes)).collect();
        storage.push_bulk(jobs).await.map_err(|error| error.to_string())?;
        Ok(None)
    }

    async fn start_worker(
        plan: &QueuePlan,
        recorder: Arc<RunRecorder>,
    ) -> BenchResult<JoinHandle<()>> {
        let poll_interval = Duration::from_millis(plan.settings.poll_interval_millis);
        let backend = connect_storage(plan).await?.poll_with_interval(poll_interval);
        let handler = move |body: JobBody| {
            let recorder = Arc::clone(&recorder);
            async move {
                recorder.record_start(&body);
                Ok::<(), BoxDynError>(())
            }
        };
        let name = match plan.process_number {
            0 => WORKER_NAME.to_owned(),
            number => format!("{WORKER_NAME}-{number}"),
        };
        let builder = WorkerBuilder::new(name).backend(backend);
        // Without `parallelize` it runs one job at a time, and with it as many as it fetched.
        if plan.concurrency > 1 {
            Ok(tokio::spawn(log_worker_error(
                builder.parallelize(tokio::spawn).build(handler).run(),
            )))
        } else {
            Ok(tokio::spawn(log_worker_error(builder.build(handler).run())))
        }
    }
}

async fn log_worker_error<E: std::fmt::Display>(worker: impl Future<Output = Result<(), E>>) {
    if let Err(error) = worker.await {
        eprintln!("apalis-redis: the worker ended: {error}");
    }
}
