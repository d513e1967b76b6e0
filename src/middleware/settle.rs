//! What a gate makes of an answer.

use std::{future::Future, marker::PhantomData, sync::Arc};

use futures_util::future::{self, Either, Ready};
use http::{Method, Response, header::CONTENT_LENGTH, request::Parts};
use http_body::Body;
use tokio::runtime::Handle;

use super::{
    body::{GateBody, add_field, add_fields, is_sent_without_body, response},
    framework::{Framework, PartsView, fields, head},
    parking::{AnyRequest, read_whole},
};
use crate::{
    gate::{Attended, Detached, Gate, Kept, Outcome, Parting, PickUp, Reading, Room, Slot},
    reply::Reply,
};

/// A gate that a request has passed, until its answer comes.
pub(super) struct Passed<G: Gate<Parts>, F> {
    gate: Arc<G>,
    quick: G::Quick,
    /// The request's method is HEAD.
    head: bool,
    framework: PhantomData<F>,
}

impl<G: Gate<Parts>, F> Passed<G, F> {
    pub(super) fn new(gate: Arc<G>, quick: G::Quick, method: &Method) -> Self {
        Self { gate, quick, head: *method == Method::HEAD, framework: PhantomData }
    }

    pub(super) fn outcome<R: Body, E>(&self, ended: &Result<Response<R>, E>) -> Outcome {
        outcome(self.head, ended)
    }

    /// The request is to run in a task of its own, and there is a runtime for that.
    pub(super) fn detach(&mut self) -> Option<Detached> {
        Handle::try_current().ok()?;
        self.gate.detach(&mut self.quick)
    }

    /// The gate, its ticket, and whether the request's method is HEAD.
    pub(super) fn into_ticket(self) -> (Arc<G>, G::Ticket, bool) {
        let ticket = self.gate.ticket(self.quick);
        (self.gate, ticket, self.head)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.gate.is_settled(&self.quick)
    }

    /// Adds what the gate wants to the answer, if it wants no more than that: `None` then.
    pub(super) fn part<R, E>(self, ended: &mut Result<Response<R>, E>) -> Option<Self> {
        let Self { gate, quick, head, framework } = self;
        let parted = gate.part(quick, |name, value| {
            if let Ok(answer) = ended {
                add_field(answer, name, value);
            }
        });
        parted.err().map(|quick| Self { gate, quick, head, framework })
    }
}

/// How an inner call ended that has ended by itself.
pub(super) fn outcome<R: Body, E>(head: bool, ended: &Result<Response<R>, E>) -> Outcome {
    match ended {
        Ok(response) if is_sent_without_body(head, response) => {
            Outcome::Answered(response.status().as_u16())
        }
        Ok(response) => Outcome::Streams(response.status().as_u16()),
        Err(_) => Outcome::Failed,
    }
}

/// The fields of an answer, and the length of its body: whoever writes that field stands further out, if nobody has yet.
pub(super) fn told<R: Body>(answer: &Response<R>) -> Vec<(String, Vec<u8>)> {
    let mut told = fields(answer.headers());
    let known = answer.headers().contains_key(CONTENT_LENGTH);
    if let Some(length) = answer.body().size_hint().exact().filter(|_| !known) {
        told.push((CONTENT_LENGTH.as_str().to_owned(), length.to_string().into_bytes()));
    }
    told
}

/// Leaves the gate of a request that has passed at once.
pub(super) fn settle<G: Gate<Parts>, F: Framework, R: Body + Send, E: Send>(
    passed: Passed<G, F>,
    ended: Result<Response<R>, E>,
    outcome: Outcome,
) -> impl Future<Output = Result<Response<GateBody<R>>, E>> + Send {
    let Passed { gate, quick, .. } = passed;
    let mut ticket = gate.ticket(quick);
    if let Ok(answer) = &ended {
        gate.hear(&mut ticket, || told(answer));
    }
    leave::<G, F, R, E>(gate, ticket, Attended::Ended(ended), outcome, None)
}

/// Leaves the gate, and makes of the answer what that wants.
#[expect(
    clippy::manual_async_fn,
    reason = "what an async fn is given lies in its future twice, and that must stay below 1 KiB"
)]
pub(super) fn leave<G: Gate<Parts>, F: Framework, R: Body + Send, E: Send>(
    gate: Arc<G>,
    ticket: G::Ticket,
    ended: Attended<Result<Response<R>, E>>,
    outcome: Outcome,
    reading: Option<Reading>,
) -> impl Future<Output = Result<Response<GateBody<R>>, E>> + Send {
    async move {
        // No early return for an error: the gate is left in every case.
        let parting = gate.leave(ticket, outcome).await;
        match ended {
            Attended::Ended(Ok(answer)) => {
                let made = finish::<G, F, R>(gate, answer, parting, reading);
                Ok(made.await)
            }
            Attended::Ended(Err(error)) if outcome != Outcome::TooSlow => Err(error),
            Attended::Ended(Err(_)) | Attended::Stopped => Ok(response(parting.into_reply())),
        }
    }
}

/// Makes of an answer what the gate wants: at once, or for those that were parked by asking it.
pub(super) fn finish<G: Gate<Parts>, F: Framework, R: Body + Send>(
    gate: Arc<G>,
    mut answer: Response<R>,
    parting: Parting<G::Ticket, G::Parked>,
    reading: Option<Reading>,
) -> Either<Ready<Response<GateBody<R>>>, impl Future<Output = Response<GateBody<R>>> + Send> {
    Either::Left(future::ready(match parting {
        Parting::Fields(fields) => {
            add_fields(&mut answer, fields);
            answer.map(GateBody::inner)
        }
        Parting::Replace(reply) => response(reply),
        Parting::Keep(ticket) => {
            let kept = Kept::new(G::clone(&gate), ticket, reading);
            answer.map(|body| GateBody::kept(body, kept))
        }
        // Most answers are none of that: their futures are without it.
        Parting::Accept { parked, room, slot } => {
            let accepted = accepted::<G, F, R>(gate, answer, parked, room, slot);
            return Either::Right(Box::pin(accepted));
        }
    }))
}

/// The answer to a request that was parked: that of the gate, if it has taken it over.
async fn accepted<G: Gate<Parts>, F: Framework, R: Body>(
    gate: Arc<G>,
    answer: Response<R>,
    parked: G::Parked,
    room: Room,
    slot: Slot,
) -> Response<GateBody<R>> {
    let instead = match slot.take_request() {
        Some(request) => accept::<G, F>(&gate, parked, request, room).await,
        None => None,
    };
    instead.map_or_else(|| answer.map(GateBody::inner), response)
}

async fn accept<G: Gate<Parts>, F: Framework>(
    gate: &G,
    mut parked: G::Parked,
    request: AnyRequest,
    mut room: Room,
) -> Option<Reply> {
    let (mut parts, body) = request.into_parts();
    let head = head::<F>(&parts);
    let mut view = PartsView::<F>::new(&mut parts);
    let body = match gate.pick_up(&mut parked, &head, &mut view, &mut room) {
        PickUp::Whole => read_whole(body, &mut room).await,
        PickUp::Head => None,
        PickUp::Nothing => return None,
    };
    gate.accept(parked, head, body).await
}
