//! Requests that are deferred: `DeferLayer` outside a `LockLayer`, and a worker that runs them through a
//! service behind the same `LockLayer`. Either all of them are deferred, or those that find their lock held.

use std::{
    convert::Infallible,
    future,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::body::{Body as HttpBody, Bytes, HttpBody as HttpBodyOf, to_bytes};
use http::{Request, Response, StatusCode};
use lockgate::{Key, LockGuard, Released, Store};
use lockgate_axum::{DeferLayer, DeferWorker, LockLayer};
use tokio::task::{JoinHandle, JoinSet};
use tower::{Layer as _, Service, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use super::{
    Kind, Queue,
    plan::Plan,
    rig::Turnstile,
    seen::{Body, Seen},
};
use crate::{clock, contestant::connect_store, outcome::Outcome};

type App = BoxCloneSyncService<Request<HttpBody>, Response<HttpBody>, Infallible>;

/// Names the resource. With the rest of the head it makes about 150 bytes.
const FIELD: &str = "x-order";

/// Longer than any load.
const LEASE: Duration = Duration::from_secs(600);

const PLENTY: u64 = 1 << 40;

/// Locks that are acquired or released at once.
const AT_ONCE: usize = 64;

/// How long a lock is waited for: the run that was let end last has it until its worker has settled that.
const SETTLED: Duration = Duration::from_secs(10);

pub(super) struct Requests {
    app: App,
    store: Store,
    held: Mutex<Vec<LockGuard>>,
    bytes: usize,
    resources: u64,
    /// Each request finds a lock held by nobody else, which is let go as soon as it has been deferred.
    each: bool,
}

fn lock(store: &Store) -> LockLayer {
    LockLayer::by_header(FIELD).store(store)
}

/// The body as axum's routes have it.
fn plain<B>(response: Response<B>) -> Response<HttpBody>
where
    B: HttpBodyOf<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    response.map(HttpBody::new)
}

/// Within bounds that no load comes near.
fn layer(plan: &Plan) -> DeferLayer {
    let layer = DeferLayer::new().max_jobs(PLENTY).max_bytes(PLENTY);
    let layer = layer.queue_jobs(PLENTY).queue_bytes(PLENTY);
    let layer = if plan.kind == Kind::Busy { layer } else { layer.defer_always() };
    if plan.delay > 0 { layer.delay(Duration::from_millis(plan.delay)) } else { layer }
}

fn key(resource: u64) -> Key {
    Key::header(FIELD, resource.to_string().as_bytes())
}

async fn hold(store: Store, resource: u64) -> Outcome<LockGuard> {
    let lock = store.lock(key(resource)).lease(LEASE).max_hold(LEASE);
    Ok(lock.wait(SETTLED).acquire().await?)
}

async fn release(guard: LockGuard) -> Outcome<()> {
    match guard.release().await {
        Released::Released => Ok(()),
        other => Err(format!("a lock was {other:?} instead of released").into()),
    }
}

impl Queue for Requests {
    type Work = JoinHandle<()>;

    async fn pushes(plan: &Plan) -> Outcome<Self> {
        let store = connect_store(plan.port).await?;
        let handler = service_fn(async |_: Request<HttpBody>| {
            Ok::<_, Infallible>(Response::new(HttpBody::from("at once")))
        });
        let deferred = layer(plan).layer(lock(&store).layer(handler));
        let app = App::new(deferred.map_response(plain));
        let busy = plan.kind == Kind::Busy;
        // A push that keeps its moments is one by one, each on a resource of its own.
        let each = busy && plan.keep;
        let mut held = Vec::new();
        if busy && !each {
            let mut tasks = JoinSet::new();
            for resource in 0..plan.resources {
                if tasks.len() == AT_ONCE
                    && let Some(guard) = tasks.join_next().await
                {
                    held.push(guard??);
                }
                tasks.spawn(hold(store.clone(), resource));
            }
            for guard in tasks.join_all().await {
                held.push(guard?);
            }
        }
        Ok(Self {
            app,
            store,
            held: Mutex::new(held),
            bytes: plan.bytes,
            resources: plan.resources,
            each,
        })
    }

    async fn push(&self, job: u64) -> Outcome<Option<u64>> {
        if !self.each {
            self.send(job, job % self.resources).await?;
            return Ok(None);
        }
        let guard = hold(self.store.clone(), job).await?;
        self.send(job, job).await?;
        let moment = clock::now();
        release(guard).await?;
        Ok(Some(moment))
    }

    async fn push_all(&self, _: Range<u64>) -> Outcome<Option<u64>> {
        Err("requests come one by one".into())
    }

    async fn let_go(&self) -> Outcome<()> {
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        let mut releases = JoinSet::new();
        for guard in held {
            if releases.len() == AT_ONCE
                && let Some(released) = releases.join_next().await
            {
                released??;
            }
            releases.spawn(release(guard));
        }
        releases.join_all().await.into_iter().collect()
    }

    async fn works(plan: &Plan, seen: Arc<Seen>) -> Outcome<JoinHandle<()>> {
        worker(plan, move |body| {
            seen.started_raw(&body);
            future::ready(())
        })
        .await
    }
}

/// Spawned, with a handler that sees the bodies.
async fn worker<F>(
    plan: &Plan,
    handler: impl Fn(Bytes) -> F + Clone + Send + Sync + 'static,
) -> Outcome<JoinHandle<()>>
where
    F: Future<Output = ()> + Send,
{
    let store = connect_store(plan.port).await?;
    let service = service_fn(move |request: Request<HttpBody>| {
        let handler = handler.clone();
        async move {
            let body = to_bytes(request.into_body(), usize::MAX).await;
            handler(body.unwrap_or_default()).await;
            Ok::<_, Infallible>(Response::new(HttpBody::from("done")))
        }
    });
    let routes = lock(&store).layer(service).map_response(plain);
    let worker = DeferWorker::new(&store, routes).concurrency(plan.tasks);
    Ok(tokio::spawn(worker.run(future::pending())))
}

impl Requests {
    /// As `works`, with runs that wait until they are let end.
    pub(super) async fn turns(plan: &Plan, turnstile: Arc<Turnstile>) -> Outcome<JoinHandle<()>> {
        worker(plan, move |body| {
            let turnstile = Arc::clone(&turnstile);
            async move { turnstile.pass(&body).await }
        })
        .await
    }

    async fn send(&self, job: u64, resource: u64) -> Outcome<()> {
        let body = serde_json::to_vec(&Body::new(job, self.bytes))?;
        let request = Request::post("/orders/refund")
            .header(FIELD, resource.to_string())
            .header("host", "orders.example")
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .header("user-agent", "bench/1.0 (lockgate)")
            .body(HttpBody::from(body))?;
        let mut app = self.app.clone();
        let Ok(response) = app.ready().await?.call(request).await;
        match response.status() {
            StatusCode::ACCEPTED => Ok(()),
            other => {
                let why = to_bytes(response.into_body(), usize::MAX).await?;
                let why = String::from_utf8_lossy(&why).into_owned();
                Err(format!("answered {other} instead of 202: {why}").into())
            }
        }
    }
}
