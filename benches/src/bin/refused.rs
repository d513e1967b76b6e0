//! A process that is refused again and again, for callgrind to count.
//!
//! Usage: `lockgate-benches-refused layer|bare|check PORT TIMES`, started by `lockgate-benches`.

use std::{convert::Infallible, env, error::Error, hint::black_box, process, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use lockgate::{Policy, Quota, Store};
use lockgate_axum::RateLimitLayer;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const WINDOW: Duration = Duration::from_secs(3600);

/// One thread: nothing but the refusals changes from run to run.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [what, port, times] = words.as_slice() else {
        return Err("usage: lockgate-benches-refused layer|bare|check PORT TIMES".into());
    };
    let (port, times): (u16, u32) = (port.parse()?, times.parse()?);
    let store = Store::connect(&format!("redis://127.0.0.1:{port}/?ns=bench")).await?;
    store.ping().await?;
    let quota = Quota::requests(1).per(WINDOW);
    let bare =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("ok"))));
    match what.as_str() {
        "layer" => {
            let limited = RateLimitLayer::by_header("x-key", quota).store(&store).layer(bare);
            again(limited, times, StatusCode::TOO_MANY_REQUESTS).await?;
        }
        "bare" => again(bare, times, StatusCode::OK).await?,
        "check" => check(&store, quota, times).await?,
        other => return Err(format!("`{other}` is not understood").into()),
    }
    // What goes on in the background is none of it.
    process::exit(0)
}

/// One request that may be admitted, and then so many that are answered alike.
async fn again<S, B>(mut service: S, times: u32, status: StatusCode) -> Outcome<()>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    for time in 0..=times {
        let request = Request::get("/limited").header("x-key", "0").body(Body::empty())?;
        let Ok(response) = service.ready().await?.call(request).await;
        if time > 0 && black_box(&response).status() != status {
            return Err(format!("answered {}", response.status()).into());
        }
    }
    Ok(())
}

async fn check(store: &Store, quota: Quota, times: u32) -> Outcome<()> {
    let limit = store.rate_limit(Policy::new(quota));
    for time in 0..=times {
        let decision = limit.check("0", 1).await?;
        if decision.is_admitted() != (time == 0) {
            return Err(format!("decided {decision:?}").into());
        }
    }
    Ok(())
}
