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
    gate_body::{BoxError, GateBody, frame_data, poll_next_item, response_from_reply},
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
    let (client, answer) = oneshot::channel();
    let task = drive_detached::<G, F, C, R, E>(call, passed, detached, client).in_current_span();
    drop(tokio::spawn(RequestScope::capture().run(task)));
    Box::pin(async move {
        match answer.await {
            Ok(Ok(ended)) => ended,
            // As if the handler had run in this task.
            Ok(Err(panic)) => resume_unwind(panic),
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
    let (gate, mut ticket, head) = passed.into_full_ticket();
    let call = AssertUnwindSafe(call).catch_unwind();
    let ended = match detached.run_unless_abandoned(call, client.closed()).await {
        None => return,
        Some(Ok(ended)) => ended,
        Some(Err(panic)) => {
            gate.leave(ticket, ServiceOutcome::Failed).await;
            let _ = client.send(Err(panic));
            return;
        }
    };
    let outcome = service_outcome(head, &ended);
    if let Ok(answer) = &ended {
        gate.observe_headers(&mut ticket, || response_headers(answer));
    }
    let leaving = gate.leave(ticket, outcome);
    let Some(parting) = detached.leave_gate(leaving, client.closed()).await else { return };
    let ended = match (ended, parting) {
        (Err(error), _) => Err(error),
        (Ok(answer), LeaveAction::KeepTicket(ticket)) => {
            return send_body(gate, ticket, &detached, answer, client).await;
        }
        (Ok(answer), parting) => {
            let finishing = apply_leave_action::<G, F, R>(gate, answer, parting, None);
            let Some(answer) = detached.run_unless_abandoned(finishing, client.closed()).await
            else {
                return;
            };
            Ok(answer)
        }
    };
    let _ = client.send(Ok(ended));
}

/// Sends a response and reads its body for the gate: as a whole if its length is known, otherwise
/// in chunks. Leaves the gate before the last chunk is sent, so that the client can act on it at
/// once.
async fn send_body<G, R, E>(
    gate: Arc<G>,
    mut ticket: G::Ticket,
    detached: &DetachedRun,
    answer: Response<R>,
    mut client: oneshot::Sender<DetachedResult<R, E>>,
) where
    G: Gate<Parts>,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
{
    let (parts, body) = answer.into_parts();
    let length = body.size_hint().exact();
    let mut body = Box::pin(body);
    let Some(length) = length else {
        let (to, items) = mpsc::channel(1);
        let watched = to.clone();
        let _ = client.send(Ok(Ok(Response::from_parts(parts, GateBody::from_channel(items)))));
        let mut sink = BodySink::Channel(to.clone());
        let kept = (&*gate, &mut ticket);
        let next = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), cx);
        let read = detached.forward_body(kept, next, frame_data, watched.closed(), &mut sink);
        let read = AssertUnwindSafe(read).catch_unwind().await;
        // A panic leaves the body without its end.
        let (last, outcome) = read.unwrap_or((None, ServiceOutcome::BodyFailed));
        gate.leave(ticket, outcome).await;
        if let Some(last) = last {
            let _ = to.send(Some(last)).await;
        }
        if outcome == ServiceOutcome::BodyEnded {
            let _ = to.send(None).await;
        }
        return;
    };
    let mut sink = BodySink::Buffer(Vec::new());
    let kept = (&*gate, &mut ticket);
    let next = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), cx);
    let read = detached.forward_body(kept, next, frame_data, client.closed(), &mut sink);
    let ended = match AssertUnwindSafe(read).catch_unwind().await {
        Ok((last, outcome)) => {
            gate.leave(ticket, outcome).await;
            let BodySink::Buffer(mut items) = sink else { return };
            items.extend(last);
            Ok(Ok(Response::from_parts(parts, GateBody::buffered(items, length))))
        }
        Err(panic) => {
            gate.leave(ticket, ServiceOutcome::BodyFailed).await;
            Err(panic)
        }
    };
    let _ = client.send(ended);
}
