//! A request that runs in a local task of its own, and goes on when its client has left.

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
    gate::{Detached, Gate, Outcome, Parting, Scope, Sink},
};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use crate::{
    body::{Item, left, next, piped, read, without_unsent},
    parking::Parking,
    refuse::Answer,
    reply::{Refused, told, told_whole},
    transform::{Passage, amend, outcome},
};

/// The answer, or the payload of the handler's panic.
type Ended<B> = Result<Result<Answer<B>, Error>, Box<dyn Any + Send>>;

impl<S, G: Gate<HttpRequest>> Passage<S, G> {
    /// Runs the call in a task of its own, on this thread. The returned future is the client's: it
    /// may be dropped at any time.
    pub(crate) fn detach<B>(
        self,
        ticket: G::Ticket,
        request: ServiceRequest,
        detached: Detached,
    ) -> LocalBoxFuture<'static, Result<Answer<B>, Error>>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
        B: MessageBody + 'static,
    {
        let parking = Parking::default();
        request.extensions_mut().insert(parking.clone());
        let call = self.inner.call(request);
        let (client, answer) = oneshot::channel();
        let task = self.go(call, ticket, parking, detached, client).in_current_span();
        drop(rt::spawn(Scope::here().run(task)));
        Box::pin(async move {
            match answer.await {
                Ok(Ok(ended)) => ended,
                // As if it had run here.
                Ok(Err(panic)) => resume_unwind(panic),
                // Its thread has ended.
                Err(_) => Err(Refused::error(Reply::new(503))),
            }
        })
    }

    async fn go<B: MessageBody + 'static>(
        self,
        call: impl Future<Output = Result<ServiceResponse<B>, Error>>,
        mut ticket: G::Ticket,
        parking: Parking,
        detached: Detached,
        mut client: oneshot::Sender<Ended<B>>,
    ) {
        let call = AssertUnwindSafe(call).catch_unwind();
        let mut ended = match detached.run(call, client.closed()).await {
            None => return,
            Some(Ok(ended)) => ended.map(without_unsent),
            Some(Err(panic)) => {
                self.gate.leave(ticket, Outcome::Failed).await;
                let _ = client.send(Err(panic));
                return;
            }
        };
        let outcome = outcome(&ended);
        match &mut ended {
            Ok(response) => self.gate.hear(&mut ticket, || told(response)),
            Err(error) => {
                let (fields, body) = told_whole(error);
                self.gate.hear(&mut ticket, || fields);
                if let Some(body) = body {
                    self.gate.hear_body(&mut ticket, &body);
                }
            }
        }
        let leaving = self.gate.leave(ticket, outcome);
        let Some(parting) = detached.leave(leaving, client.closed()).await else { return };
        let ended = match (ended, parting) {
            (Err(error), parting) => Err(amend(error, parting)),
            (Ok(answer), Parting::Keep(ticket)) => {
                return send(&self.gate, ticket, &detached, answer, client).await;
            }
            (Ok(answer), parting) => {
                let answering = self.answer(answer, parting, &parking, None);
                let Some(answer) = detached.run(answering, client.closed()).await else { return };
                Ok(answer)
            }
        };
        let _ = client.send(Ok(ended));
    }
}

/// Sends an answer whose body is read for the gate: as a whole if its length is known, else in
/// chunks. Leaves the gate before the last chunk is sent, so that the client can act on it at once.
async fn send<G: Gate<HttpRequest>, B: MessageBody + 'static>(
    gate: &G,
    mut ticket: G::Ticket,
    detached: &Detached,
    answer: Answer<B>,
    mut client: oneshot::Sender<Ended<B>>,
) {
    let (request, answer) = answer.into_parts();
    let (head, body) = answer.into_parts();
    let with =
        |body: BoxBody| Ok(ServiceResponse::new(request, head.set_body(EitherBody::right(body))));
    let size = body.size();
    let (mut to_come, mut body) = (left(size), Box::pin(body));
    let next = |cx: &mut Context<'_>| next(body.as_mut(), &mut to_come, cx);
    if left(size).is_none() {
        let (to, items) = mpsc::channel(1);
        let watched = to.clone();
        let _ = client.send(Ok(with(piped(items))));
        let mut sink = Sink::Pipe(to.clone());
        let reading = detached.read((gate, &mut ticket), next, data, watched.closed(), &mut sink);
        let reading = AssertUnwindSafe(reading).catch_unwind().await;
        // Where it panicked, the end is missing.
        let (last, outcome) = reading.unwrap_or((None, Outcome::BrokeOff));
        gate.leave(ticket, outcome).await;
        if let Some(last) = last {
            let _ = to.send(Some(last)).await;
        }
        if outcome == Outcome::Ended {
            let _ = to.send(None).await;
        }
        return;
    }
    let mut sink = Sink::Whole(Vec::new());
    let reading = detached.read((gate, &mut ticket), next, data, client.closed(), &mut sink);
    let ended = match AssertUnwindSafe(reading).catch_unwind().await {
        Ok((last, outcome)) => {
            gate.leave(ticket, outcome).await;
            let Sink::Whole(mut items) = sink else { return };
            items.extend(last);
            Ok(with(read(items, size)))
        }
        Err(panic) => {
            gate.leave(ticket, Outcome::BrokeOff).await;
            Err(panic)
        }
    };
    let _ = client.send(ended);
}

fn data(item: &Item) -> Option<&[u8]> {
    item.as_ref().ok().map(|bytes| &bytes[..])
}
