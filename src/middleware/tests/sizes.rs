//! How much memory a request takes at a time. Beyond a kibibyte allocators have no block at hand: glibc keeps those
//! of up to 1,032 bytes for each thread.

use std::{convert::Infallible, future::ready, marker::PhantomData, mem::size_of_val, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body_util::{Empty, Full, combinators::UnsyncBoxBody};
use tower::service_fn;

use super::gate;
use crate::{
    gate::{CallCompletion, Gate, InitialVerdict, ServiceOutcome, Verdict},
    lock::{LockContext, LockGate, LockTicket},
    middleware::{
        PlainHttp,
        framework::PartsView,
        gate_service::GateDriver,
        guarded_call::{CallContext, GuardedCall},
        response_future::ResponseState,
        settle::leave_gate,
    },
    store::Store,
};

const AT_HAND: usize = 1032;

/// Of the future of a route of axum.
const ROUTE: usize = 336;

type RequestBody = UnsyncBoxBody<Bytes, Infallible>;
type Answer = Result<Response<Full<Bytes>>, Infallible>;
type Next = ResponseState<(), Full<Bytes>, Infallible, LockGate<Parts>, PlainHttp>;

fn lock() -> Arc<LockGate<Parts>> {
    Arc::new(gate(&Store::memory()))
}

fn asked(lock: &LockGate<Parts>) -> (LockContext, Parts, RequestBody) {
    let request = Request::post("/").header("order", "7").body(UnsyncBoxBody::new(Empty::new()));
    let (mut parts, body) = request.expect("valid").into_parts();
    match lock.inspect(&mut PartsView::<PlainHttp>::new(&mut parts)) {
        InitialVerdict::Enter(facts) => (facts, parts, body),
        _ => panic!("it has a key"),
    }
}

async fn entered(lock: &LockGate<Parts>) -> LockTicket {
    match lock.enter(asked(lock).0).await {
        Verdict::Pass(ticket) => ticket,
        _ => panic!("it is free"),
    }
}

#[test]
fn the_entering_of_a_lock_has_a_block_at_hand() {
    let gate = lock();
    let (facts, parts, body) = asked(&gate);
    let inner = service_fn(|_: Request<RequestBody>| ready(Answer::Ok(Response::default())));
    let entering = GateDriver { inner, gate, framework: PhantomData::<PlainHttp> };
    let took = size_of_val(&entering.enter(facts, parts, body));
    assert!(took <= AT_HAND, "{took}");
}

#[tokio::test]
async fn so_has_the_call_under_it() {
    let gate = lock();
    let ticket = entered(&gate).await;
    let answer = ready(Answer::Ok(Response::default()));
    let room = ROUTE - size_of_val(&answer);
    let (call, watch) = (gate.request_scope(&ticket).run(answer), gate.cancellation(&ticket));
    let under = CallContext { gate, ticket, is_head: false, body_timer: None };
    let called = GuardedCall::<_, _, _, Next>::new(call, watch, under);
    let took = size_of_val(&called) + room;
    assert!(took <= AT_HAND, "{took}");
}

#[tokio::test]
async fn so_has_the_leaving_of_it() {
    let gate = lock();
    let ticket = entered(&gate).await;
    let ended = CallCompletion::Completed(Answer::Ok(Response::default()));
    let leaving =
        leave_gate::<_, PlainHttp, _, _>(gate, ticket, ended, ServiceOutcome::Answered(200), None);
    let took = size_of_val(&leaving);
    assert!(took <= AT_HAND, "{took}");
    assert!(leaving.await.is_ok());
}
