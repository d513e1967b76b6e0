//! Process whose requests repeatedly find their lock free, for callgrind to count.
//! `lockgate-benches` starts it.
//!
//! Usage: `lockgate-benches-unlocked with|without|place PORT TIMES`. The store is embedded, because
//! `DeferLayer` adds the same work to any store and the work of a socket is not part of the figure.

use std::{
    convert::Infallible,
    env,
    error::Error,
    hint::black_box,
    pin::Pin,
    process,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use axum::body::Body;
use http::{Response, StatusCode};
use lockgate::Store;
use lockgate_axum::{DeferLayer, LockLayer};
use pin_project::pin_project;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

type UnlockedBenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

type HttpRequest = http::Request<Body>;

#[derive(Clone)]
#[expect(dead_code, reason = "stands in for a request extension of the router")]
struct MatchedPath(&'static str);

#[derive(Clone)]
#[expect(dead_code, reason = "stands in for a request extension of the router")]
struct PathParams(Vec<(&'static str, &'static str)>);

/// Minimal layer that leaves a slot in the request for an inner layer and reads it afterwards. It
/// has no settings, reads no headers and passes nothing to the lock.
struct SlotService<S>(S);

#[derive(Clone, Default)]
struct RequestSlot(Arc<Mutex<Option<Box<HttpRequest>>>>);

#[pin_project]
struct SlotFuture<F> {
    #[pin]
    call: F,
    slot: RequestSlot,
}

impl<S: Service<HttpRequest>> Service<HttpRequest> for SlotService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = SlotFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: HttpRequest) -> Self::Future {
        let slot = RequestSlot::default();
        request.extensions_mut().insert(slot.clone());
        SlotFuture { call: self.0.call(request), slot }
    }
}

impl<F: Future> Future for SlotFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let response = ready!(this.call.poll(cx));
        black_box(this.slot.0.lock().is_ok_and(|parked| parked.is_some()));
        Poll::Ready(response)
    }
}

/// Uses one thread, so that the counts of two runs differ only by the requests.
#[tokio::main(flavor = "current_thread")]
async fn main() -> UnlockedBenchResult<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [mode, _port, calls] = args.as_slice() else {
        return Err("usage: lockgate-benches-unlocked with|without|place PORT TIMES".into());
    };
    let calls: u32 = calls.parse()?;
    let bare =
        service_fn(async |_: HttpRequest| Ok::<_, Infallible>(Response::new(Body::from("ok"))));
    let locked = LockLayer::by_header("x-order").store(&Store::memory()).layer(bare);
    match mode.as_str() {
        "with" => repeat_requests(DeferLayer::new().layer(locked), calls).await?,
        "without" => repeat_requests(locked, calls).await?,
        "place" => repeat_requests(SlotService(locked), calls).await?,
        unknown => return Err(format!("unknown mode `{unknown}`").into()),
    }
    // Background tasks are not part of the measurement.
    process::exit(0)
}

async fn repeat_requests<S, B>(mut service: S, calls: u32) -> UnlockedBenchResult<()>
where
    S: Service<HttpRequest, Response = Response<B>, Error = Infallible>,
{
    for _ in 0..calls {
        let request = http::Request::post("/orders/7/refund").header("x-order", "7");
        let mut request = request.body(Body::from("{}"))?;
        // Extensions that a router sets. Without them, the extension map would be created or grow
        // for the layer.
        request.extensions_mut().insert(MatchedPath("/orders/{id}/refund"));
        request.extensions_mut().insert(PathParams(vec![("id", "7")]));
        let Ok(response) = service.ready().await?.call(request).await;
        if black_box(&response).status() != StatusCode::OK {
            return Err(format!("unexpected status {}", response.status()).into());
        }
    }
    Ok(())
}
