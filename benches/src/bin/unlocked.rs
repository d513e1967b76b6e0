//! A process whose requests find their lock free again and again, for callgrind to count.
//!
//! Usage: `lockgate-benches-unlocked with|without PORT TIMES`, started by `lockgate-benches`. The store is this
//! process's memory: what a `DeferLayer` adds is the same, and what a socket adds is not.

use std::{convert::Infallible, env, error::Error, hint::black_box, process};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use lockgate::Store;
use lockgate_axum::{DeferLayer, LockLayer};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// One thread: nothing but the requests changes from run to run.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [what, _port, times] = words.as_slice() else {
        return Err("usage: lockgate-benches-unlocked with|without PORT TIMES".into());
    };
    let times: u32 = times.parse()?;
    let bare =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("ok"))));
    let locked = LockLayer::by_header("x-order").store(&Store::memory()).layer(bare);
    match what.as_str() {
        "with" => again(DeferLayer::new().layer(locked), times).await?,
        "without" => again(locked, times).await?,
        other => return Err(format!("`{other}` is not understood").into()),
    }
    // What goes on in the background is none of it.
    process::exit(0)
}

async fn again<S, B>(mut service: S, times: u32) -> Outcome<()>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    for _ in 0..times {
        let request = Request::post("/orders/7/refund").header("x-order", "7");
        let request = request.body(Body::from("{}"))?;
        let Ok(response) = service.ready().await?.call(request).await;
        if black_box(&response).status() != StatusCode::OK {
            return Err(format!("answered {}", response.status()).into());
        }
    }
    Ok(())
}
