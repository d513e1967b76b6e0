//! Requests that are rate-limited or locked, for callgrind to count: the body of
//! `lockgate-benches-metered` and `lockgate-benches-unmetered`.
//!
//! Usage: `.. limited|locked|limited-redis|locked-redis PORT TIMES`. Without `-redis` the store is
//! embedded, so that the count contains no socket.

use std::{
    convert::Infallible, env, error::Error, hint::black_box, pin::Pin, process, time::Duration,
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use lockgate::{Quota, Store};
use lockgate_axum::{LockLayer, RateLimitLayer};
use tokio::runtime::Runtime;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

pub(crate) type MetricsBenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Quota that no run spends.
const QUOTA_UNITS: u64 = 10_000_000;
const QUOTA_WINDOW: Duration = Duration::from_secs(3600);

/// Uncounted requests, after which connections, caches and clocks are ready.
const WARM_UP_CALLS: u32 = 1_000;

pub(crate) fn run() -> MetricsBenchResult<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [mode, port, calls] = args.as_slice() else {
        return Err("usage: limited|locked|limited-redis|locked-redis PORT TIMES".into());
    };
    let calls: u32 = calls.parse()?;
    // One thread, so that the counts of two programs differ only by the requests.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (layer, store) = match mode.strip_suffix("-redis") {
        Some(layer) => {
            let url = format!("redis://127.0.0.1:{port}/?ns=bench");
            (layer, runtime.block_on(async { Store::connect(&url).await })?)
        }
        None => (mode.as_str(), Store::memory()),
    };
    runtime.block_on(store.ping())?;
    let bare =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("ok"))));
    match layer {
        "limited" => {
            let quota = Quota::requests(QUOTA_UNITS).per(QUOTA_WINDOW);
            let limited = RateLimitLayer::by_header("x-key", quota).store(&store);
            measure(&runtime, limited.layer(bare), calls)?;
        }
        "locked" => {
            let locked = LockLayer::by_header("x-key").store(&store);
            measure(&runtime, locked.layer(bare), calls)?;
        }
        unknown => return Err(format!("unknown mode `{unknown}`").into()),
    }
    // Background tasks are not part of the measurement.
    process::exit(0)
}

fn measure<S, B>(runtime: &Runtime, mut service: S, calls: u32) -> MetricsBenchResult<()>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    runtime.block_on(repeat_requests(&mut service, WARM_UP_CALLS))?;
    run_counted(runtime, Box::pin(repeat_requests(&mut service, calls)))
}

type BoxedRequests<'a> = Pin<Box<dyn Future<Output = MetricsBenchResult<()>> + 'a>>;

/// Runs the requests that callgrind counts. It finds this function by its name.
#[inline(never)]
fn run_counted(runtime: &Runtime, requests: BoxedRequests<'_>) -> MetricsBenchResult<()> {
    runtime.block_on(requests)
}

async fn repeat_requests<S, B>(service: &mut S, calls: u32) -> MetricsBenchResult<()>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    for _ in 0..calls {
        let request = Request::post("/orders/7").header("x-key", "7").body(Body::empty())?;
        let Ok(response) = service.ready().await?.call(request).await;
        if black_box(&response).status() != StatusCode::OK {
            return Err(format!("unexpected status {}", response.status()).into());
        }
    }
    Ok(())
}
