//! Process whose requests are refused repeatedly, for callgrind to count. `lockgate-benches` starts
//! it.
//!
//! Usage: `lockgate-benches-refused layer|bare|check PORT TIMES`

use std::{convert::Infallible, env, error::Error, hint::black_box, process, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use lockgate::{Policy, Quota, Store};
use lockgate_axum::RateLimitLayer;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

type RefusalBenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const QUOTA_WINDOW: Duration = Duration::from_secs(3600);

/// Uses one thread, so that the counts of two runs differ only by the refusals.
#[tokio::main(flavor = "current_thread")]
async fn main() -> RefusalBenchResult<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [mode, port, calls] = args.as_slice() else {
        return Err("usage: lockgate-benches-refused layer|bare|check PORT TIMES".into());
    };
    let (port, calls): (u16, u32) = (port.parse()?, calls.parse()?);
    let store = Store::connect(&format!("redis://127.0.0.1:{port}/?ns=bench")).await?;
    store.ping().await?;
    let quota = Quota::requests(1).per(QUOTA_WINDOW);
    let bare =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("ok"))));
    match mode.as_str() {
        "layer" => {
            let limited = RateLimitLayer::by_header("x-key", quota).store(&store).layer(bare);
            repeat_requests(limited, calls, StatusCode::TOO_MANY_REQUESTS).await?;
        }
        "bare" => repeat_requests(bare, calls, StatusCode::OK).await?,
        "check" => repeat_checks(&store, quota, calls).await?,
        unknown => return Err(format!("unknown mode `{unknown}`").into()),
    }
    // Background tasks are not part of the measurement.
    process::exit(0)
}

/// Sends one request that may be admitted, and then `calls` requests that must be answered with
/// `status`.
async fn repeat_requests<S, B>(
    mut service: S,
    calls: u32,
    status: StatusCode,
) -> RefusalBenchResult<()>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    for call in 0..=calls {
        let request = Request::get("/limited").header("x-key", "0").body(Body::empty())?;
        let Ok(response) = service.ready().await?.call(request).await;
        if call > 0 && black_box(&response).status() != status {
            return Err(format!("unexpected status {}", response.status()).into());
        }
    }
    Ok(())
}

async fn repeat_checks(store: &Store, quota: Quota, calls: u32) -> RefusalBenchResult<()> {
    let limiter = store.rate_limiter(Policy::new(quota));
    for call in 0..=calls {
        let decision = limiter.check("0", 1).await?;
        if decision.is_admitted() != (call == 0) {
            return Err(format!("unexpected decision {decision:?}").into());
        }
    }
    Ok(())
}
