//! The crate apalis-redis. Its pushes take `&mut self`, so each is given a clone, which shares the
//! connection.

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
    NAME, Queue,
    plan::Plan,
    seen::{Body, Seen},
};
use crate::outcome::Outcome;

/// Part of a key that is looked at for what runs; each further worker must have another name.
const WORKER: &str = "bench-worker";

pub(super) struct Apalis {
    storage: RedisStorage<Body>,
    bytes: usize,
    delay: Option<Duration>,
}

async fn storage(plan: &Plan) -> Outcome<RedisStorage<Body>> {
    let connection = apalis_redis::connect(format!("redis://127.0.0.1:{}", plan.port)).await?;
    // It takes a batch into the process at once: no less than run at once, and no more than it must.
    let config = Config::default().queue(NAME).batch_size(plan.setting.batch.max(plan.tasks));
    Ok(RedisStorage::new(connection).with_config(config))
}

impl Queue for Apalis {
    type Work = JoinHandle<()>;

    async fn pushes(plan: &Plan) -> Outcome<Self> {
        let delay = (plan.delay > 0).then(|| Duration::from_millis(plan.delay));
        Ok(Self { storage: storage(plan).await?, bytes: plan.bytes, delay })
    }

    async fn push(&self, job: u64) -> Outcome<Option<u64>> {
        let mut storage = self.storage.clone();
        let body = Body::new(job, self.bytes);
        match self.delay {
            None => storage.push(body).await.map_err(|error| error.to_string())?,
            Some(delay) => {
                let task = TaskBuilder::new(body).run_after(delay).build();
                storage.push_task(task).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(None)
    }

    async fn push_all(&self, jobs: Range<u64>) -> Outcome<Option<u64>> {
        let mut storage = self.storage.clone();
        let jobs = jobs.map(|job| Body::new(job, self.bytes)).collect();
        storage.push_bulk(jobs).await.map_err(|error| error.to_string())?;
        Ok(None)
    }

    async fn works(plan: &Plan, seen: Arc<Seen>) -> Outcome<JoinHandle<()>> {
        let poll = Duration::from_millis(plan.setting.poll);
        let backend = storage(plan).await?.poll_with_interval(poll);
        let handler = move |body: Body| {
            let seen = Arc::clone(&seen);
            async move {
                seen.started(&body);
                Ok::<(), BoxDynError>(())
            }
        };
        let name = match plan.number {
            0 => WORKER.to_owned(),
            number => format!("{WORKER}-{number}"),
        };
        let builder = WorkerBuilder::new(name).backend(backend);
        // One at a time is its way without this; with it, as many as it has fetched.
        if plan.tasks > 1 {
            Ok(tokio::spawn(told(builder.parallelize(tokio::spawn).build(handler).run())))
        } else {
            Ok(tokio::spawn(told(builder.build(handler).run())))
        }
    }
}

async fn told<E: std::fmt::Display>(worker: impl Future<Output = Result<(), E>>) {
    if let Err(error) = worker.await {
        eprintln!("apalis-redis: the worker ended: {error}");
    }
}
