//! `store.queue`: typed tasks, and a worker that runs a function.

use std::{future, ops::Range, sync::Arc, time::Duration};

use lockgate::queue::{Queue as Inner, Task, TaskFailure};
use tokio::{runtime::Builder, task::JoinHandle};

use super::{
    QUEUE_NAME, QueueContender,
    job_counts::JobCounts,
    queue_plan::QueuePlan,
    run_recorder::{JobBody, RunRecorder},
};
use crate::{bench_result::BenchResult, lock_contender::connect_store};

pub(super) struct TaskQueue {
    queue: Inner<JobBody>,
    body_bytes: usize,
    delay: Option<Duration>,
}

impl QueueContender for TaskQueue {
    type WorkerHandle = JoinHandle<()>;

    async fn connect_producer(plan: &QueuePlan) -> BenchResult<Self> {
        let queue = connect_store(plan.redis_port).await?.queue(QUEUE_NAME);
        let delay = (plan.delay > 0).then(|| Duration::from_millis(plan.delay));
        Ok(Self { queue, body_bytes: plan.body_bytes, delay })
    }

    async fn push(&self, job: u64) -> BenchResult<Option<u64>> {
        let push = self.queue.push(&JobBody::new(job, self.body_bytes));
        match self.delay {
            None => push.await?,
            Some(delay) => push.delay(delay).await?,
        };
        Ok(None)
    }

    async fn push_batch(&self, _: Range<u64>) -> BenchResult<Option<u64>> {
        Err("`store.queue` has no batch push; it batches the pushes of a process itself".into())
    }

    async fn start_worker(
        plan: &QueuePlan,
        recorder: Arc<RunRecorder>,
    ) -> BenchResult<JoinHandle<()>> {
        let queue: Inner<JobBody> = connect_store(plan.redis_port).await?.queue(QUEUE_NAME);
        let worker = queue.worker(move |task: Task<JobBody>| {
            recorder.record_start(&task.payload);
            future::ready(Ok::<(), TaskFailure>(()))
        });
        let worker = worker.concurrency(plan.concurrency);
        Ok(tokio::spawn(worker.run(future::pending())))
    }
}

/// Counts tasks with the statistics of the queue.
pub(super) fn count_tasks(port: u16) -> BenchResult<JobCounts> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let stats = runtime.block_on(async {
        let queue: Inner<JobBody> = connect_store(port).await?.queue(QUEUE_NAME);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(queue.stats().await?)
    })?;
    let other = stats.pushed - stats.waiting - stats.running - stats.done;
    Ok(JobCounts { waiting: stats.waiting, running: stats.running, done: stats.done, other })
}
