//! A process whose requests find their lock free again and again, for callgrind to count.
//!
//! Usage: `lockgate-benches-unlocked with|without|place PORT TIMES`, started by `lockgate-benches`. The store is this
//! process's memory: what a `DeferLayer` adds is the same, and what a socket adds is not.

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

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

type Request = http::Request<Body>;

#[derive(Clone)]
#[expect(dead_code, reason = "it lies there")]
struct MatchedPath(&'static str);

#[derive(Clone)]
#[expect(dead_code, reason = "it lies there")]
struct Params(Vec<(&'static str, &'static str)>);

/// The least that a layer can be which leaves a place in the request for one further in, and looks afterwards whether
/// anything was put there: no settings, no fields read, nothing told the lock.
struct Placed<S>(S);

#[derive(Clone, Default)]
struct Place(Arc<Mutex<Option<Box<Request>>>>);

#[pin_project]
struct Looks<F> {
    #[pin]
    call: F,
    place: Place,
}

impl<S: Service<Request>> Service<Request> for Placed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Looks<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let place = Place::default();
        request.extensions_mut().insert(place.clone());
        Looks { call: self.0.call(request), place }
    }
}

impl<F: Future> Future for Looks<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = ready!(this.call.poll(cx));
        black_box(this.place.0.lock().is_ok_and(|parked| parked.is_some()));
        Poll::Ready(answer)
    }
}

/// One thread: nothing but the requests changes from run to run.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [what, _port, times] = words.as_slice() else {
        return Err("usage: lockgate-benches-unlocked with|without|place PORT TIMES".into());
    };
    let times: u32 = times.parse()?;
    let bare = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::from("ok"))));
    let locked = LockLayer::by_header("x-order").store(&Store::memory()).layer(bare);
    match what.as_str() {
        "with" => again(DeferLayer::new().layer(locked), times).await?,
        "without" => again(locked, times).await?,
        "place" => again(Placed(locked), times).await?,
        other => return Err(format!("`{other}` is not understood").into()),
    }
    // What goes on in the background is none of it.
    process::exit(0)
}

async fn again<S, B>(mut service: S, times: u32) -> Outcome<()>
where
    S: Service<Request, Response = Response<B>, Error = Infallible>,
{
    for _ in 0..times {
        let request = http::Request::post("/orders/7/refund").header("x-order", "7");
        let mut request = request.body(Body::from("{}"))?;
        // As a router leaves them there: a map that is made, or grows, for what comes next is not the layer's.
        request.extensions_mut().insert(MatchedPath("/orders/{id}/refund"));
        request.extensions_mut().insert(Params(vec![("id", "7")]));
        let Ok(response) = service.ready().await?.call(request).await;
        if black_box(&response).status() != StatusCode::OK {
            return Err(format!("answered {}", response.status()).into());
        }
    }
    Ok(())
}
