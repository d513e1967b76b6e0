//! Direct runs in a task of their own, which continue when their client disconnects.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    task::Context,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Response, request::Parts};
use http_body::Body;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use super::{
    framework::Framework,
    gate_body::{BoxError, GateBody, frame_data, poll_next_item},
    reply_response::response_from_reply,
    settle::{PassedGate, apply_leave_action, response_headers, service_outcome},
};
use crate::{
    gate::{BodySink, DetachedRun, Gate, LeaveAction, RequestScope, ServiceOutcome},
    reply::Reply,
};

/// The response, or the payload of the handler's panic.
type DetachedResult<R, E> = Result<Result<Response<GateBody<R>>, E>, Box<dyn Any + Send>>;

/// Runs the call in a task of its own. The returned future belongs to the client and may be dropped
/// at any time.
pub(super) fn spawn_detached<G, F, C, R, E>(
    call: C,
    passed: PassedGate<G, F>,
    detached: DetachedRun,
) -> BoxFuture<'static, Result<Response<GateBody<R>>, E>>
where
    G: Gate<Parts>,
    F: Framework,
    C: Future<Output = Result<Response<R>, E>> + Send + 'static,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
{
    let (client, response) = oneshot::channel();
    let task = drive_detached::<G, F, C, R, E>(call, passed, detached, client).in_current_span();
    drop(tokio::spawn(RequestScope::capture().run(task)));
    Box::pin(async move {
        match response.await {
            Ok(Ok(call_result)) => call_result,
            // As if the handler had run in this task.
            Ok(Err(panic_payload)) => resume_unwind(panic_payload),
            // The task's runtime has ended.
            Err(_) => Ok(response_from_reply(Reply::store_unavailable())),
        }
    })
}

async fn drive_detached<G, F, C, R, E>(
    call: C,
    passed: PassedGate<G, F>,
    detached: DetachedRun,
    mut client: oneshot::Sender<DetachedResult<R, E>>,
) where
    G: Gate<Parts>,
    F: Framework,
    C: Future<Output = Result<Response<R>, E>> + Send + 'static,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
{
    let (gate, mut ticket, is_head) = passed.into_full_ticket();
    let call = AssertUnwindSafe(call).catch_unwind();
    let call_result = match detached.run_unless_abandoned(call, client.closed()).await {
        None => return,
        Some(Ok(call_result)) => call_result,
        Some(Err(panic_payload)) => {
            gate.leave(ticket, ServiceOutcome::Failed).await;
            let _ = client.send(Err(panic_payload));
            return;
        }
    };
    let outcome = service_outcome(is_head, &call_result);
    if let Ok(response) = &call_result {
        gate.observe_headers(&mut ticket, || response_headers(response));
    }
    let leaving = gate.leave(ticket, outcome);
    let Some(leave_action) = detached.leave_gate(leaving, client.closed()).await else { return };
    let call_result = match (call_result, leave_action) {
        (Err(error), _) => Err(error),
        (Ok(response), LeaveAction::KeepTicket(ticket)) => {
            return send_body(gate, ticket, &detached, response, client).await;
        }
        (Ok(response), leave_action) => {
            let applied = apply_leave_action::<G, F, R>(gate, response, leave_action, None);
            let Some(response) = detached.run_unless_abandoned(applied, client.closed()).await
            else {
                return;
            };
            Ok(response)
        }
    };
    let _ = client.send(Ok(call_result));
}

/// Sends a response and reads its body for the gate: as a whole if its length is known, otherwise
/// in chunks. Leaves the gate before the last chunk is sent, so that the client can act on it at
/// once.
async fn send_body<G, R, E>(
    gate: Arc<G>,
    ticket: G::Ticket,
    detached: &DetachedRun,
    response: Response<R>,
    client: oneshot::Sender<DetachedResult<R, E>>,
) where
    G: Gate<Parts>,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
{
    match response.body().size_hint().exact() {
        Some(length) => send_buffered(gate, ticket, detached, response, length, client).await,
        None => send_streaming(gate, ticket, detached, response, client).await,
    }
}

/// Sends the head at once and then each chunk.
async fn send_streaming<G, R, E>(
    gate: Arc<G>,
    mut ticket: G::Ticket,
    detached: &DetachedRun,
    response: Response<R>,
    client: oneshot::Sender<DetachedResult<R, E>>,
) where
    G: Gate<Parts>,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
{
    let (parts, body) = response.into_parts();
    let mut body = Box::pin(body);
    let (sender, receiver) = mpsc::channel(1);
    let watched_sender = sender.clone();
    let _ = client.send(Ok(Ok(Response::from_parts(parts, GateBody::from_channel(receiver)))));
    let mut sink = BodySink::Channel(sender.clone());
    let gate_and_ticket = (&*gate, &mut ticket);
    let next = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), cx);
    let disconnect = watched_sender.closed();
    let forwarding =
        detached.forward_body(gate_and_ticket, next, frame_data, disconnect, &mut sink);
    let forwarded = AssertUnwindSafe(forwarding).catch_unwind().await;
    // A panic leaves the body without its end.
    let (last_item, outcome) = forwarded.unwrap_or((None, ServiceOutcome::BodyFailed));
    gate.leave(ticket, outcome).await;
    if let Some(last_item) = last_item {
        let _ = sender.send(Some(last_item)).await;
    }
    if outcome == ServiceOutcome::BodyEnded {
        let _ = sender.send(None).await;
    }
}

/// Sends the response with its whole body.
async fn send_buffered<G, R, E>(
    gate: Arc<G>,
    mut ticket: G::Ticket,
    detached: &DetachedRun,
    response: Response<R>,
    length: u64,
    mut client: oneshot::Sender<DetachedResult<R, E>>,
) where
    G: Gate<Parts>,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
{
    let (parts, body) = response.into_parts();
    let mut body = Box::pin(body);
    let mut sink = BodySink::Buffer(Vec::new());
    let gate_and_ticket = (&*gate, &mut ticket);
    let next = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), cx);
    let disconnect = client.closed();
    let forwarding =
        detached.forward_body(gate_and_ticket, next, frame_data, disconnect, &mut sink);
    let call_result = match AssertUnwindSafe(forwarding).catch_unwind().await {
        Ok((last_item, outcome)) => {
            gate.leave(ticket, outcome).await;
            let BodySink::Buffer(mut items) = sink else { return };
            items.extend(last_item);
            Ok(Ok(Response::from_parts(parts, GateBody::buffered(items, length))))
        }
        Err(panic_payload) => {
            gate.leave(ticket, ServiceOutcome::BodyFailed).await;
            Err(panic_payload)
        }
    };
    let _ = client.send(call_result);
}
