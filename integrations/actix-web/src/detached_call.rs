//! Runs a request in a local task of its own, which continues when the client disconnects.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, resume_unwind},
    task::Context,
};

use actix_web::{
    Error, HttpMessage as _, HttpRequest,
    body::{BoxBody, EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse},
    rt,
};
use futures_util::{FutureExt as _, future::LocalBoxFuture};
use lockgate::{
    Reply,
    driver::{BodySink, DetachedRun, Gate, LeaveAction, RequestScope, ServiceOutcome},
};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use crate::{
    early_response::GatedResponse,
    gate_middleware::{LocalGateDriver, amend_error, service_outcome},
    payload_slot::PayloadSlot,
    reply_response::{ReplyError, error_headers_and_body, response_headers},
    ticketed_body::{
        ChunkResult, buffered_body, channel_body, drop_unsent_body, known_length, poll_next_item,
    },
};

/// Response of the inner service, or the payload of the handler's panic.
type LocalDetachedResult<B> = Result<Result<GatedResponse<B>, Error>, Box<dyn Any + Send>>;

impl<S, G: Gate<HttpRequest>> LocalGateDriver<S, G> {
    /// Runs the call in a task of its own, on this thread. The returned future belongs to the
    /// client and may be dropped at any time.
    pub(crate) fn spawn_detached<B>(
        self,
        ticket: G::Ticket,
        request: ServiceRequest,
        detached: DetachedRun,
    ) -> LocalBoxFuture<'static, Result<GatedResponse<B>, Error>>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
        B: MessageBody + 'static,
    {
        let parking = PayloadSlot::default();
        request.extensions_mut().insert(parking.clone());
        let call = self.inner.call(request);
        let (client, answer) = oneshot::channel();
        let task = self.drive_detached(call, ticket, parking, detached, client).in_current_span();
        drop(rt::spawn(RequestScope::capture().run(task)));
        Box::pin(async move {
            match answer.await {
                Ok(Ok(ended)) => ended,
                // As if the call had run here.
                Ok(Err(panic)) => resume_unwind(panic),
                // The task's thread has ended.
                Err(_) => Err(ReplyError::from_reply(Reply::new(503))),
            }
        })
    }

    async fn drive_detached<B: MessageBody + 'static>(
        self,
        call: impl Future<Output = Result<ServiceResponse<B>, Error>>,
        mut ticket: G::Ticket,
        parking: PayloadSlot,
        detached: DetachedRun,
        mut client: oneshot::Sender<LocalDetachedResult<B>>,
    ) {
        let call = AssertUnwindSafe(call).catch_unwind();
        let mut ended = match detached.run_unless_abandoned(call, client.closed()).await {
            None => return,
            Some(Ok(ended)) => ended.map(drop_unsent_body),
            Some(Err(panic)) => {
                self.gate.leave(ticket, ServiceOutcome::Failed).await;
                let _ = client.send(Err(panic));
                return;
            }
        };
        let outcome = service_outcome(&ended);
        match &mut ended {
            Ok(response) => self.gate.observe_headers(&mut ticket, || response_headers(response)),
            Err(error) => {
                let (fields, body) = error_headers_and_body(error);
                self.gate.observe_headers(&mut ticket, || fields);
                if let Some(body) = body {
                    self.gate.observe_body_chunk(&mut ticket, &body);
                }
            }
        }
        let leaving = self.gate.leave(ticket, outcome);
        let Some(parting) = detached.leave_gate(leaving, client.closed()).await else { return };
        let ended = match (ended, parting) {
            (Err(error), parting) => Err(amend_error(error, parting)),
            (Ok(answer), LeaveAction::KeepTicket(ticket)) => {
                return send_body(&self.gate, ticket, &detached, answer, client).await;
            }
            (Ok(answer), parting) => {
                let answering = self.apply_leave_action(answer, parting, &parking, None);
                let Some(answer) = detached.run_unless_abandoned(answering, client.closed()).await
                else {
                    return;
                };
                Ok(answer)
            }
        };
        let _ = client.send(Ok(ended));
    }
}

/// Sends a response and lets the gate observe its body: buffered if the length is known, otherwise
/// in chunks. Leaves the gate before the last chunk is sent, so that the client can act on it at
/// once.
async fn send_body<G: Gate<HttpRequest>, B: MessageBody + 'static>(
    gate: &G,
    mut ticket: G::Ticket,
    detached: &DetachedRun,
    answer: GatedResponse<B>,
    mut client: oneshot::Sender<LocalDetachedResult<B>>,
) {
    let (request, answer) = answer.into_parts();
    let (head, body) = answer.into_parts();
    let with =
        |body: BoxBody| Ok(ServiceResponse::new(request, head.set_body(EitherBody::right(body))));
    let size = body.size();
    let (mut to_come, mut body) = (known_length(size), Box::pin(body));
    let next = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), &mut to_come, cx);
    if known_length(size).is_none() {
        let (to, items) = mpsc::channel(1);
        let watched = to.clone();
        let _ = client.send(Ok(with(channel_body(items))));
        let mut sink = BodySink::Channel(to.clone());
        let reading = detached.forward_body(
            (gate, &mut ticket),
            next,
            chunk_data,
            watched.closed(),
            &mut sink,
        );
        let reading = AssertUnwindSafe(reading).catch_unwind().await;
        // After a panic the end of the body is missing.
        let (last, outcome) = reading.unwrap_or((None, ServiceOutcome::BodyFailed));
        gate.leave(ticket, outcome).await;
        if let Some(last) = last {
            let _ = to.send(Some(last)).await;
        }
        if outcome == ServiceOutcome::BodyEnded {
            let _ = to.send(None).await;
        }
        return;
    }
    let mut sink = BodySink::Buffer(Vec::new());
    let reading =
        detached.forward_body((gate, &mut ticket), next, chunk_data, client.closed(), &mut sink);
    let ended = match AssertUnwindSafe(reading).catch_unwind().await {
        Ok((last, outcome)) => {
            gate.leave(ticket, outcome).await;
            let BodySink::Buffer(mut items) = sink else { return };
            items.extend(last);
            Ok(with(buffered_body(items, size)))
        }
        Err(panic) => {
            gate.leave(ticket, ServiceOutcome::BodyFailed).await;
            Err(panic)
        }
    };
    let _ = client.send(ended);
}

fn chunk_data(item: &ChunkResult) -> Option<&[u8]> {
    item.as_ref().ok().map(|bytes| &bytes[..])
}
