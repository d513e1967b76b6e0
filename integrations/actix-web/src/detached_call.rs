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
    detached_body::{buffered_body, channel_body},
    early_response::GatedResponse,
    local_gate_driver::{LocalGateDriver, amend_error, service_outcome},
    parked_payload::ParkedPayload,
    reply_to_response::ReplyError,
    response_and_error_headers::{error_headers_and_body, response_headers},
    ticketed_body::{ChunkResult, known_length, poll_next_item},
    unsent_body::drop_unsent_body,
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
        let parked_payload = ParkedPayload::default();
        request.extensions_mut().insert(parked_payload.clone());
        let call = self.inner.call(request);
        let (client, result) = oneshot::channel();
        let task = self.drive_detached(call, ticket, parked_payload, detached, client);
        drop(rt::spawn(RequestScope::capture().run(task.in_current_span())));
        Box::pin(async move {
            match result.await {
                Ok(Ok(result)) => result,
                // As if the call had run here.
                Ok(Err(panic)) => resume_unwind(panic),
                // The task's thread has ended.
                Err(_) => Err(ReplyError::from_reply(Reply::new(503))),
            }
        })
    }

    /// Drives the call to its end in its task, and sends the result to the client.
    async fn drive_detached<B: MessageBody + 'static>(
        self,
        call: impl Future<Output = Result<ServiceResponse<B>, Error>>,
        mut ticket: G::Ticket,
        parked_payload: ParkedPayload,
        detached: DetachedRun,
        mut client: oneshot::Sender<LocalDetachedResult<B>>,
    ) {
        let call = AssertUnwindSafe(call).catch_unwind();
        let mut result = match detached.run_unless_abandoned(call, client.closed()).await {
            None => return,
            Some(Ok(result)) => result.map(drop_unsent_body),
            Some(Err(panic)) => {
                self.gate.leave(ticket, ServiceOutcome::Failed).await;
                let _ = client.send(Err(panic));
                return;
            }
        };
        let outcome = service_outcome(&result);
        match &mut result {
            Ok(response) => self.gate.observe_headers(&mut ticket, || response_headers(response)),
            Err(error) => {
                let (headers, body) = error_headers_and_body(error);
                self.gate.observe_headers(&mut ticket, || headers);
                if let Some(body) = body {
                    self.gate.observe_body_chunk(&mut ticket, &body);
                }
            }
        }
        let leaving = self.gate.leave(ticket, outcome);
        let Some(leave_action) = detached.leave_gate(leaving, client.closed()).await else {
            return;
        };
        let result = match (result, leave_action) {
            (Err(error), leave_action) => Err(amend_error(error, leave_action)),
            (Ok(response), LeaveAction::KeepTicket(ticket)) => {
                return send_response(&self.gate, ticket, &detached, response, client).await;
            }
            (Ok(response), leave_action) => {
                let amending =
                    self.apply_leave_action(response, leave_action, &parked_payload, None);
                let Some(response) = detached.run_unless_abandoned(amending, client.closed()).await
                else {
                    return;
                };
                Ok(response)
            }
        };
        let _ = client.send(Ok(result));
    }
}

/// Sends a response and lets the gate observe its body: buffered if the length is known, otherwise
/// in chunks. Leaves the gate before the last chunk is sent, so that the client can act on it at
/// once.
async fn send_response<G: Gate<HttpRequest>, B: MessageBody + 'static>(
    gate: &G,
    mut ticket: G::Ticket,
    detached: &DetachedRun,
    response: GatedResponse<B>,
    mut client: oneshot::Sender<LocalDetachedResult<B>>,
) {
    let (request, response) = response.into_parts();
    let (head, body) = response.into_parts();
    let response_with_body =
        |body: BoxBody| Ok(ServiceResponse::new(request, head.set_body(EitherBody::right(body))));
    let size = body.size();
    let (mut remaining_bytes, mut body) = (known_length(size), Box::pin(body));
    let poll_item = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), &mut remaining_bytes, cx);
    if known_length(size).is_none() {
        let (sender, items) = mpsc::channel(1);
        let closable_sender = sender.clone();
        let _ = client.send(Ok(response_with_body(channel_body(items))));
        let mut sink = BodySink::Channel(sender.clone());
        let reading = detached.forward_body(
            (gate, &mut ticket),
            poll_item,
            chunk_data,
            closable_sender.closed(),
            &mut sink,
        );
        let reading = AssertUnwindSafe(reading).catch_unwind().await;
        // After a panic the end of the body is missing.
        let (last_item, outcome) = reading.unwrap_or((None, ServiceOutcome::BodyFailed));
        gate.leave(ticket, outcome).await;
        if let Some(item) = last_item {
            let _ = sender.send(Some(item)).await;
        }
        if outcome == ServiceOutcome::BodyEnded {
            let _ = sender.send(None).await;
        }
        return;
    }
    let mut sink = BodySink::Buffer(Vec::new());
    let reading = detached.forward_body(
        (gate, &mut ticket),
        poll_item,
        chunk_data,
        client.closed(),
        &mut sink,
    );
    let result = match AssertUnwindSafe(reading).catch_unwind().await {
        Ok((last_item, outcome)) => {
            gate.leave(ticket, outcome).await;
            let BodySink::Buffer(mut items) = sink else { return };
            items.extend(last_item);
            Ok(response_with_body(buffered_body(items, size)))
        }
        Err(panic) => {
            gate.leave(ticket, ServiceOutcome::BodyFailed).await;
            Err(panic)
        }
    };
    let _ = client.send(result);
}

/// Returns the bytes of a chunk, if reading it did not fail.
fn chunk_data(item: &ChunkResult) -> Option<&[u8]> {
    item.as_ref().ok().map(|bytes| &bytes[..])
}
