//! The driver around a lock whose store is slow, with tokio's clock stopped: what waits for what.

use std::{convert::Infallible, future::Future, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, request::Parts};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use tokio::time::Instant;
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer as _;

use super::{BodyError, GateBody, GateLayer, Plain};
use crate::{
    gate::KeySource,
    lock::{HoldUntil, LockGate, OnLoss},
    store::{Fault, Store, faulty},
};

const SECOND: Duration = Duration::from_secs(1);

fn gate(store: &Store) -> LockGate<Parts> {
    LockGate::new(KeySource::header("order")).store(store)
}

fn request() -> Request<Empty<Bytes>> {
    Request::post("/").header("order", "7").body(Empty::new()).expect("valid")
}

/// What the layer answers around a handler.
async fn answer<F, R>(
    gate: LockGate<Parts>,
    handler: impl Fn() -> F + Clone + Send + 'static,
) -> Response<GateBody<R>>
where
    F: Future<Output = R> + Send + 'static,
    R: Body + Send + 'static,
{
    let handler = service_fn(move |_| {
        let answer = handler();
        async { Ok::<_, Infallible>(Response::new(answer.await)) }
    });
    let service = GateLayer::<_, Plain>::new(gate).layer(handler);
    service.oneshot(request()).await.expect("it does not fail")
}

/// A store that takes a second for the next release.
fn slow() -> Store {
    let (store, faults) = faulty();
    faults.set("release", Fault::Slow(SECOND), 1);
    store
}

async fn is_free(store: &Store) -> bool {
    let key = crate::Key::header("order", b"7");
    let lock = store.as_another_process().lock(key).acquire().await;
    lock.is_ok()
}

fn chunks() -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
    let chunks = ["one", "two"].map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
    StreamBody::new(stream::iter(chunks))
}

#[tokio::test(start_paused = true)]
async fn the_head_waits_for_the_release() {
    let store = slow();
    let began = Instant::now();
    let answer = answer(gate(&store), async || chunks()).await;
    assert_eq!(began.elapsed(), SECOND);
    assert_eq!(answer.collect().await.expect("whole").to_bytes(), "onetwo");
    assert_eq!(began.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_body_waits_for_the_release() {
    let store = slow();
    let began = Instant::now();
    let gate = gate(&store).hold_until(HoldUntil::BodyEnd);
    let mut body = answer(gate, async || chunks()).await.into_body();
    for _ in 0..2 {
        assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        assert!(!body.is_end_stream() && !is_free(&store).await);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(body.frame().await.is_none());
    assert_eq!(began.elapsed(), SECOND);
    assert!(body.frame().await.is_none(), "and it stays at its end");
    assert!(is_free(&store).await);
}

/// hyper asks for no end after it: the client has it all.
#[tokio::test(start_paused = true)]
async fn the_last_chunk_waits_for_the_release() {
    let store = slow();
    let began = Instant::now();
    let gate = gate(&store).hold_until(HoldUntil::BodyEnd);
    let mut body = answer(gate, async || Full::from("whole")).await.into_body();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(body.size_hint().exact(), Some(5));
    assert!(!body.is_end_stream());
    assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
    assert_eq!(began.elapsed(), SECOND);
    assert!(body.is_end_stream() && is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn the_head_waits_if_there_is_no_body() {
    let store = slow();
    let began = Instant::now();
    let gate = gate(&store).hold_until(HoldUntil::BodyEnd);
    let body = answer(gate, async || Empty::<Bytes>::new()).await.into_body();
    assert_eq!(began.elapsed(), SECOND);
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_gives_its_lock_back() {
    let store = Store::memory();
    let gate = gate(&store).hold_until(HoldUntil::BodyEnd);
    let mut body = answer(gate, async || chunks()).await.into_body();
    assert!(body.frame().await.is_some());
    assert!(!is_free(&store).await);
    drop(body);
    assert!(store.shutdown(SECOND).await && is_free(&store).await);
}

/// The rest of it never comes.
async fn stalls(on_loss: OnLoss) -> (Store, Option<Result<Frame<Bytes>, BodyError>>) {
    let store = Store::memory();
    let gate = gate(&store).hold_until(HoldUntil::BodyEnd).on_loss(on_loss).max_hold(SECOND);
    let stalls = async || StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let mut body = answer(gate, stalls).await.into_body();
    let next = tokio::time::timeout(2 * SECOND, body.frame()).await;
    (store, next.ok().flatten())
}

#[tokio::test(start_paused = true)]
async fn a_loss_breaks_the_body_off_or_not() {
    let (store, next) = stalls(OnLoss::Cancel).await;
    let error = next.expect("told").expect_err("broken off");
    assert!(error.to_string().contains("broken off"), "{error}");
    assert!(store.shutdown(SECOND).await && is_free(&store).await);
    for policy in [OnLoss::Finish, OnLoss::Replace] {
        let (_, next) = stalls(policy).await;
        assert!(next.is_none(), "it may go on: {next:?}");
    }
}
