//! Sizes of the futures of a request. Allocators cache small blocks: glibc those of up to 1,032
//! bytes for each thread.

use std::{convert::Infallible, future::ready, marker::PhantomData, mem::size_of_val, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body_util::{Empty, Full, combinators::UnsyncBoxBody};
use tower::service_fn;

use super::lock_gate;
use crate::{
    gate::{CallCompletion, Gate, InitialVerdict, ServiceOutcome, Verdict},
    lock::{LockEntryContext, LockLayer, LockTicket},
    middleware::{
        PlainHttp,
        gate_service::GateDriver,
        guarded_call::{CallContext, GuardedCall},
        parts_view::PartsView,
        response_future::ResponseState,
        settle::leave_gate,
    },
    store::Store,
};

const MAX_CACHED_ALLOCATION: usize = 1032;

/// Size of the future of an axum route.
const AXUM_ROUTE_SIZE: usize = 336;

type SizedRequestBody = UnsyncBoxBody<Bytes, Infallible>;
type HandlerResult = Result<Response<Full<Bytes>>, Infallible>;
type LockResponseState =
    ResponseState<(), Full<Bytes>, Infallible, LockLayer<PlainHttp>, PlainHttp>;

fn shared_lock_gate() -> Arc<LockLayer<PlainHttp>> {
    Arc::new(lock_gate(&Store::memory()))
}

fn inspect_request(lock: &LockLayer<PlainHttp>) -> (LockEntryContext, Parts, SizedRequestBody) {
    let request = Request::post("/").header("order", "7").body(UnsyncBoxBody::new(Empty::new()));
    let (mut parts, body) = request.expect("valid").into_parts();
    match lock.inspect(&mut PartsView::<PlainHttp>::new(&mut parts)) {
        InitialVerdict::Enter(context) => (context, parts, body),
        _ => panic!("it has a key"),
    }
}

async fn enter_lock(lock: &LockLayer<PlainHttp>) -> LockTicket {
    match lock.enter(inspect_request(lock).0).await {
        Verdict::Pass(ticket) => ticket,
        _ => panic!("it is free"),
    }
}

#[test]
fn enter_future_fits_a_cached_allocation() {
    let gate = shared_lock_gate();
    let (context, parts, body) = inspect_request(&gate);
    let inner =
        service_fn(|_: Request<SizedRequestBody>| ready(HandlerResult::Ok(Response::default())));
    let entering = GateDriver { inner, gate, framework: PhantomData::<PlainHttp> };
    let took = size_of_val(&entering.enter(context, parts, body));
    assert!(took <= MAX_CACHED_ALLOCATION, "{took}");
}

#[tokio::test]
async fn guarded_call_future_fits_a_cached_allocation() {
    let gate = shared_lock_gate();
    let ticket = enter_lock(&gate).await;
    let answer = ready(HandlerResult::Ok(Response::default()));
    let padding = AXUM_ROUTE_SIZE - size_of_val(&answer);
    let (call, watch) = (gate.request_scope(&ticket).run(answer), gate.cancellation(&ticket));
    let context = CallContext { gate, ticket, is_head: false, timeout_watch: None };
    let called = GuardedCall::<_, _, _, LockResponseState>::new(call, watch, context);
    let took = size_of_val(&called) + padding;
    assert!(took <= MAX_CACHED_ALLOCATION, "{took}");
}

#[tokio::test]
async fn leave_future_fits_a_cached_allocation() {
    let gate = shared_lock_gate();
    let ticket = enter_lock(&gate).await;
    let ended = CallCompletion::Completed(HandlerResult::Ok(Response::default()));
    let leaving =
        leave_gate::<_, PlainHttp, _, _>(gate, ticket, ended, ServiceOutcome::Answered(200), None);
    let took = size_of_val(&leaving);
    assert!(took <= MAX_CACHED_ALLOCATION, "{took}");
    assert!(leaving.await.is_ok());
}
