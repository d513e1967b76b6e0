//! Driver around a lock on a slow store, with tokio's clock paused.

mod future_sizes;
mod interrupted_body;
mod response_body_capture;

use std::{
    convert::Infallible, error::Error as StdError, future::Future, sync::Arc, time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer as _;

use super::{BoxError, GateBody, GateLayer, PlainHttp};
use crate::{
    gate::KeySource,
    lock::{HoldUntil, LockLayer},
    store::{BackendFault, Store, faulty_store},
};

const SECOND: Duration = Duration::from_secs(1);

fn lock_gate(store: &Store) -> LockLayer<PlainHttp> {
    LockLayer::by(KeySource::header("order")).store(store)
}

/// Response of a handler inside the layer.
async fn call_under_lock<F, R>(
    gate: LockLayer<PlainHttp>,
    handler: impl Fn() -> F + Clone + Send + 'static,
) -> Response<GateBody<R>>
where
    F: Future<Output = R> + Send + 'static,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let handler = service_fn(move |_| {
        let answer = handler();
        async { Ok::<_, Infallible>(Response::new(answer.await)) }
    });
    let service = GateLayer::<_, PlainHttp>::new(gate).layer(handler);
    service.oneshot(post_request(Empty::<Bytes>::new())).await.expect("it does not fail")
}

/// Store whose next release takes one second.
fn slow_release_store() -> Store {
    let (store, faults) = faulty_store();
    faults.set("release", BackendFault::SlowReply(SECOND), 1);
    store
}

async fn is_lock_free(store: &Store) -> bool {
    let key = crate::Key::header("order", b"7");
    let lock = store.as_another_process().lock(key).acquire().await;
    lock.is_ok()
}

fn two_chunk_body() -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
    let chunks = ["one", "two"].map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
    StreamBody::new(stream::iter(chunks))
}

#[tokio::test(start_paused = true)]
async fn response_head_waits_for_the_release() {
    let store = slow_release_store();
    let began = Instant::now();
    let answer = call_under_lock(lock_gate(&store), async || two_chunk_body()).await;
    assert_eq!(began.elapsed(), SECOND);
    assert_eq!(answer.collect().await.expect("whole").to_bytes(), "onetwo");
    assert_eq!(began.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn body_end_waits_for_the_release() {
    let store = slow_release_store();
    let began = Instant::now();
    let gate = lock_gate(&store).hold_until(HoldUntil::BodyEnd);
    let mut body = call_under_lock(gate, async || two_chunk_body()).await.into_body();
    for _ in 0..2 {
        assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        assert!(!body.is_end_stream() && !is_lock_free(&store).await);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(body.frame().await.is_none());
    assert_eq!(began.elapsed(), SECOND);
    assert!(body.frame().await.is_none(), "and it stays at its end");
    assert!(is_lock_free(&store).await);
}

/// hyper does not poll a sized body beyond its last chunk.
#[tokio::test(start_paused = true)]
async fn last_chunk_of_sized_body_waits_for_the_release() {
    let store = slow_release_store();
    let began = Instant::now();
    let gate = lock_gate(&store).hold_until(HoldUntil::BodyEnd);
    let mut body = call_under_lock(gate, async || Full::from("whole")).await.into_body();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(body.size_hint().exact(), Some(5));
    assert!(!body.is_end_stream());
    assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
    assert_eq!(began.elapsed(), SECOND);
    assert!(body.is_end_stream() && is_lock_free(&store).await);
}

fn post_request<B>(body: B) -> Request<B> {
    Request::post("/").header("order", "7").body(body).expect("valid")
}

type BoxedTestBody = UnsyncBoxBody<Bytes, Box<dyn StdError + Send + Sync>>;

/// Body of `bytes` bytes, each after a delay of `each`.
fn slow_body<E: Send + 'static>(bytes: usize, each: Duration) -> UnsyncBoxBody<Bytes, E> {
    let frames = stream::iter(0..bytes).then(move |_| async move {
        tokio::time::sleep(each).await;
        Ok(Frame::data(Bytes::from_static(b".")))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Status of the response to a slow client, and its time.
async fn timed_status<F, E>(
    gate: LockLayer<PlainHttp>,
    body: BoxedTestBody,
    handler: impl Fn(BoxedTestBody) -> F + Clone + Send + 'static,
) -> (Duration, Result<u16, E>)
where
    F: Future<Output = Result<StatusCode, E>> + Send + 'static,
    E: Send + 'static,
{
    let handler = service_fn(move |request: Request<BoxedTestBody>| {
        let status = handler(request.into_body());
        async {
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = status.await?;
            Ok(response)
        }
    });
    let began = Instant::now();
    let answer =
        GateLayer::<_, PlainHttp>::new(gate).layer(handler).oneshot(post_request(body)).await;
    (began.elapsed(), answer.map(|answer| answer.status().as_u16()))
}

/// Handler that reads the body and ignores its error.
async fn drain_body(mut body: BoxedTestBody) -> Result<StatusCode, Infallible> {
    while let Some(Ok(_)) = body.frame().await {}
    Ok(StatusCode::OK)
}

#[tokio::test(start_paused = true)]
async fn slow_request_body_is_408_after_five_seconds() {
    let store = Store::memory();
    let second = |bytes| slow_body(bytes, SECOND);
    assert_eq!(timed_status(lock_gate(&store), second(4), drain_body).await, (4 * SECOND, Ok(200)));
    let (took, status) = timed_status(lock_gate(&store), second(60), drain_body).await;
    assert_eq!((took.as_secs(), status), (5, Ok(408)));
    assert!(is_lock_free(&store).await);
    let store = Store::memory();
    let longer = lock_gate(&store).body_read_timeout(Duration::MAX);
    assert_eq!(timed_status(longer, second(50), drain_body).await, (50 * SECOND, Ok(200)));
}

/// The handler works longer between two bytes than the client needs to send one.
#[tokio::test(start_paused = true)]
async fn handler_time_does_not_count_as_body_wait() {
    let works = |mut body: BoxedTestBody| async move {
        tokio::time::sleep(10 * SECOND).await;
        while let Some(Ok(_)) = body.frame().await {
            tokio::time::sleep(10 * SECOND).await;
        }
        Ok::<_, Infallible>(StatusCode::OK)
    };
    let store = Store::memory();
    let each = Duration::from_millis(1500);
    assert_eq!(timed_status(lock_gate(&store), slow_body(3, each), works).await.1, Ok(200));
    assert_eq!(timed_status(lock_gate(&store), slow_body(4, each), works).await.1, Ok(408));
}

#[tokio::test(start_paused = true)]
async fn body_timeout_is_408_for_each_handler_reaction() {
    let store = Store::memory();
    let fails = |mut body: BoxedTestBody| async move {
        while let Some(frame) = body.frame().await {
            frame.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(StatusCode::OK)
    };
    assert_eq!(timed_status(lock_gate(&store), slow_body(60, SECOND), fails).await.1, Ok(408));
    let ignores = |body: BoxedTestBody| async move {
        let _ = drain_body(body).await;
        std::future::pending::<Result<_, Infallible>>().await
    };
    assert_eq!(timed_status(lock_gate(&store), slow_body(60, SECOND), ignores).await.1, Ok(408));
    // Reads the body in another task, which the driver cannot observe otherwise.
    let spawns = |body: BoxedTestBody| async move {
        crate::store::spawn(drain_body(body));
        std::future::pending::<Result<_, Infallible>>().await
    };
    assert_eq!(timed_status(lock_gate(&store), slow_body(60, SECOND), spawns).await.1, Ok(408));
    assert!(is_lock_free(&store).await);
}

/// Both layers would stop the handler. The outer one sends the response and must not report that
/// the handler ended.
#[tokio::test(start_paused = true)]
async fn outer_of_nested_layers_stops_the_handler() {
    let store = Store::memory();
    let gate = || lock_gate(&store).max_hold(SECOND);
    let handler =
        service_fn(|_| std::future::pending::<Result<Response<BoxedTestBody>, Infallible>>());
    let inner = GateLayer::<_, PlainHttp>::new(gate()).layer(handler);
    let service = GateLayer::<_, PlainHttp>::new(gate()).layer(inner);
    let answer =
        service.oneshot(post_request(Empty::<Bytes>::new())).await.expect("it does not fail");
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let body = answer.into_body().collect().await.expect("whole").to_bytes();
    let detail = String::from_utf8_lossy(&body).into_owned();
    assert!(detail.contains("It was stopped"), "{detail}");
}

/// The handler's future is dropped before the lock is released.
#[tokio::test(start_paused = true)]
async fn handler_is_dropped_before_its_lock_is_released() {
    struct DropTimeRecorder(Arc<Mutex<Option<Instant>>>);

    impl Drop for DropTimeRecorder {
        fn drop(&mut self) {
            *self.0.lock() = Some(Instant::now());
        }
    }

    let store = slow_release_store();
    let ended = Arc::new(Mutex::new(None));
    let recorded = Arc::clone(&ended);
    let began = Instant::now();
    let (took, status) = timed_status(lock_gate(&store), slow_body(60, SECOND), move |body| {
        let work = DropTimeRecorder(Arc::clone(&recorded));
        async move {
            let _work = work;
            let _ = drain_body(body).await;
            std::future::pending::<Result<_, Infallible>>().await
        }
    })
    .await;
    assert_eq!((took.as_secs(), status), (6, Ok(408)));
    let ended = ended.lock().expect("it was dropped");
    assert_eq!((ended - began).as_secs(), 5, "a second before the release was over");
}

/// No error can be inserted into this body type, so its time is not limited. That is logged.
#[tokio::test(start_paused = true)]
async fn unsupported_body_type_has_no_timeout() {
    let store = Store::memory();
    let handler = service_fn(|request: Request<UnsyncBoxBody<Bytes, Infallible>>| async {
        let whole = request.into_body().collect().await?.to_bytes();
        Ok::<_, Infallible>(Response::new(Full::new(whole)))
    });
    let service = GateLayer::<_, PlainHttp>::new(lock_gate(&store)).layer(handler);
    let answer =
        service.oneshot(post_request(slow_body(9, SECOND))).await.expect("it does not fail");
    assert_eq!(answer.status(), StatusCode::OK);
}

/// The request body is echoed as the response body, so the head was sent before the client is found
/// to be slow.
#[tokio::test(start_paused = true)]
async fn echoed_body_under_lock_fails_on_a_slow_client() {
    for (until, whole) in [(HoldUntil::BodyEnd, false), (HoldUntil::Answered, true)] {
        let store = Store::memory();
        let echo = service_fn(|request: Request<BoxedTestBody>| async {
            Ok::<_, Infallible>(Response::new(request.into_body()))
        });
        let gate = lock_gate(&store).hold_until(until);
        let service = GateLayer::<_, PlainHttp>::new(gate).layer(echo);
        let answer =
            service.oneshot(post_request(slow_body(9, SECOND))).await.expect("it does not fail");
        assert_eq!(answer.status(), StatusCode::OK);
        let echoed = answer.into_body().collect().await;
        assert_eq!(echoed.is_ok(), whole, "without a lock there is nothing to protect");
        assert!(store.shutdown(SECOND).await && is_lock_free(&store).await);
    }
}
