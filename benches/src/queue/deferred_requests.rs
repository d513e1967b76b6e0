//! Deferred requests: `DeferLayer` outside a `LockLayer`, and a worker that replays them through
//! the same `LockLayer`. Either all requests are deferred, or those whose lock is busy.

use std::{
    convert::Infallible,
    future,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::body::{Body as HttpBody, Bytes, HttpBody as HttpBodyOf, to_bytes};
use http::{Request, Response, StatusCode};
use lockgate::{Key, LockGuard, ReleaseStatus, Store};
use lockgate_axum::{DeferLayer, DeferWorker, LockLayer};
use tokio::task::{JoinHandle, JoinSet};
use tower::{Layer as _, Service, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use super::{
    QueueContender, QueueKind,
    queue_plan::QueuePlan,
    run_recorder::{JobBody, RunRecorder},
    step_executor::RunBarrier,
};
use crate::{bench_result::BenchResult, clock, lock_contender::connect_store};

type AppService = BoxCloneSyncService<Request<HttpBody>, Response<HttpBody>, Infallible>;

/// Header with the resource. The request head has about 150 bytes.
const RESOURCE_HEADER: &str = "x-order";

/// Lease and maximum hold of the locks, longer than any load.
const LOCK_LEASE: Duration = Duration::from_secs(600);

const UNREACHABLE_LIMIT: u64 = 1 << 40;

/// Number of acquires or releases in flight.
const CONCURRENT_LOCK_CALLS: usize = 64;

/// Limit of the wait for a lock. The lock of the last run is held until its worker has settled the
/// run.
const LOCK_WAIT: Duration = Duration::from_secs(10);

pub(super) struct DeferredRequests {
    app: AppService,
    store: Store,
    held_locks: Mutex<Vec<LockGuard>>,
    body_bytes: usize,
    resource_count: u64,
    /// Each request has a lock of its own, which is held until the request is deferred.
    has_lock_per_request: bool,
}

fn lock_layer(store: &Store) -> LockLayer {
    LockLayer::by_header(RESOURCE_HEADER).store(store)
}

/// Converts the body to the type that axum uses.
fn box_response_body<B>(response: Response<B>) -> Response<HttpBody>
where
    B: HttpBodyOf<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    response.map(HttpBody::new)
}

/// Creates the layer, with limits that no load reaches.
fn defer_layer(plan: &QueuePlan) -> DeferLayer {
    let layer = DeferLayer::new()
        .max_resource_jobs(UNREACHABLE_LIMIT)
        .max_resource_bytes(UNREACHABLE_LIMIT);
    let layer = layer.max_queue_jobs(UNREACHABLE_LIMIT).max_queue_bytes(UNREACHABLE_LIMIT);
    let layer = if plan.kind == QueueKind::BlockedRequests { layer } else { layer.background() };
    if plan.delay > 0 { layer.delay(Duration::from_millis(plan.delay)) } else { layer }
}

fn lock_key(resource: u64) -> Key {
    Key::header(RESOURCE_HEADER, resource.to_string().as_bytes())
}

async fn acquire_lock(store: Store, resource: u64) -> BenchResult<LockGuard> {
    let lock = store.lock(lock_key(resource)).lease(LOCK_LEASE).max_hold(LOCK_LEASE);
    Ok(lock.wait(LOCK_WAIT).acquire().await?)
}

async fn release_lock(guard: LockGuard) -> BenchResult<()> {
    match guard.release().await {
        ReleaseStatus::Released => Ok(()),
        unexpected => Err(format!("unexpected release status: {unexpected:?}").into()),
    }
}

impl QueueContender for DeferredRequests {
    type WorkerHandle = JoinHandle<()>;

    async fn connect_producer(plan: &QueuePlan) -> BenchResult<Self> {
        let store = connect_store(plan.redis_port).await?;
        let handler = service_fn(async |_: Request<HttpBody>| {
            Ok::<_, Infallible>(Response::new(HttpBody::from("at once")))
        });
        let service = defer_layer(plan).layer(lock_layer(&store).layer(handler));
        let app = AppService::new(service.map_response(box_response_body));
        let needs_busy_lock = plan.kind == QueueKind::BlockedRequests;
        // With recorded times, one request is pushed at a time, each on a resource of its own.
        let has_lock_per_request = needs_busy_lock && plan.record_times;
        let mut held_locks = Vec::new();
        if needs_busy_lock && !has_lock_per_request {
            let mut tasks = JoinSet::new();
            for resource in 0..plan.resource_count {
                if tasks.len() == CONCURRENT_LOCK_CALLS
                    && let Some(guard) = tasks.join_next().await
                {
                    held_locks.push(guard??);
                }
                tasks.spawn(acquire_lock(store.clone(), resource));
            }
            for guard in tasks.join_all().await {
                held_locks.push(guard?);
            }
        }
        Ok(Self {
            app,
            store,
            held_locks: Mutex::new(held_locks),
            body_bytes: plan.body_bytes,
            resource_count: plan.resource_count,
            has_lock_per_request,
        })
    }

    async fn push(&self, job: u64) -> BenchResult<Option<u64>> {
        if !self.has_lock_per_request {
            self.send_request(job, job % self.resource_count).await?;
            return Ok(None);
        }
        let guard = acquire_lock(self.store.clone(), job).await?;
        self.send_request(job, job).await?;
        let release_time = clock::now();
        release_lock(guard).await?;
        Ok(Some(release_time))
    }

    async fn push_batch(&self, _: Range<u64>) -> BenchResult<Option<u64>> {
        Err("requests are sent one by one".into())
    }

    async fn unblock_jobs(&self) -> BenchResult<()> {
        let held_locks =
            std::mem::take(&mut *self.held_locks.lock().unwrap_or_else(PoisonError::into_inner));
        let mut releases = JoinSet::new();
        for guard in held_locks {
            if releases.len() == CONCURRENT_LOCK_CALLS
                && let Some(released) = releases.join_next().await
            {
                released??;
            }
            releases.spawn(release_lock(guard));
        }
        releases.join_all().await.into_iter().collect()
    }

    async fn start_worker(
        plan: &QueuePlan,
        recorder: Arc<RunRecorder>,
    ) -> BenchResult<JoinHandle<()>> {
        start_request_worker(plan, move |body| {
            recorder.record_raw_start(&body);
            future::ready(())
        })
        .await
    }
}

/// Spawns a worker whose handler receives the bodies.
async fn start_request_worker<F>(
    plan: &QueuePlan,
    handler: impl Fn(Bytes) -> F + Clone + Send + Sync + 'static,
) -> BenchResult<JoinHandle<()>>
where
    F: Future<Output = ()> + Send,
{
    let store = connect_store(plan.redis_port).await?;
    let service = service_fn(move |request: Request<HttpBody>| {
        let handler = handler.clone();
        async move {
            let body = to_bytes(request.into_body(), usize::MAX).await;
            handler(body.unwrap_or_default()).await;
            Ok::<_, Infallible>(Response::new(HttpBody::from("done")))
        }
    });
    let routes = lock_layer(&store).layer(service).map_response(box_response_body);
    let worker = DeferWorker::new(&store, routes).concurrency(plan.concurrency);
    Ok(tokio::spawn(worker.run(future::pending())))
}

impl DeferredRequests {
    /// Like `start_worker`, with runs that wait for a permit to finish.
    pub(super) async fn start_stepped_worker(
        plan: &QueuePlan,
        barrier: Arc<RunBarrier>,
    ) -> BenchResult<JoinHandle<()>> {
        start_request_worker(plan, move |body| {
            let barrier = Arc::clone(&barrier);
            async move { barrier.wait_to_finish(&body).await }
        })
        .await
    }

    async fn send_request(&self, job: u64, resource: u64) -> BenchResult<()> {
        let body = serde_json::to_vec(&JobBody::new(job, self.body_bytes))?;
        let request = Request::post("/orders/refund")
            .header(RESOURCE_HEADER, resource.to_string())
            .header("host", "orders.example")
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .header("user-agent", "bench/1.0 (lockgate)")
            .body(HttpBody::from(body))?;
        let mut app = self.app.clone();
        let Ok(response) = app.ready().await?.call(request).await;
        match response.status() {
            StatusCode::ACCEPTED => Ok(()),
            unexpected => {
                let reason = to_bytes(response.into_body(), usize::MAX).await?;
                let reason = String::from_utf8_lossy(&reason).into_owned();
                Err(format!("status {unexpected} instead of 202: {reason}").into())
            }
        }
    }
}
