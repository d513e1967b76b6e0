//! What a gate makes of an answer.

use std::marker::PhantomData;

use http::{Method, Response, request::Parts};
use http_body::Body;

use super::{
    body::{GateBody, add_field, add_fields, is_sent_without_body, response},
    framework::{Framework, PartsView, fields, head},
    parking::{AnyRequest, read_whole},
};
use crate::{
    gate::{Gate, Kept, Outcome, Parting, PickUp, Reading, Room},
    reply::Reply,
};

/// A gate that a request has passed, until its answer comes.
pub(super) struct Passed<G: Gate<Parts>, F> {
    gate: G,
    quick: G::Quick,
    /// The request's method is HEAD.
    head: bool,
    framework: PhantomData<F>,
}

impl<G: Gate<Parts>, F> Passed<G, F> {
    pub(super) fn new(gate: G, quick: G::Quick, method: &Method) -> Self {
        Self { gate, quick, head: *method == Method::HEAD, framework: PhantomData }
    }

    pub(super) fn outcome<R: Body, E>(&self, ended: &Result<Response<R>, E>) -> Outcome {
        outcome(self.head, ended)
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

/// Leaves the gate of a request that has passed at once.
pub(super) async fn settle<G: Gate<Parts>, F: Framework, R: Body, E>(
    passed: Passed<G, F>,
    ended: Result<Response<R>, E>,
    outcome: Outcome,
) -> Result<Response<GateBody<R>>, E> {
    let Passed { gate, quick, .. } = passed;
    let mut ticket = gate.ticket(quick);
    if let Ok(answer) = &ended {
        gate.hear(&mut ticket, || fields(answer.headers()));
    }
    // No early return for an error: the gate is left in every case.
    let parting = gate.leave(ticket, outcome).await;
    Ok(finish::<G, F, R>(gate, ended?, parting, None).await)
}

/// Makes of an answer what the gate wants.
pub(super) async fn finish<G: Gate<Parts>, F: Framework, R: Body>(
    gate: G,
    mut answer: Response<R>,
    parting: Parting<G::Ticket, G::Parked>,
    reading: Option<Reading>,
) -> Response<GateBody<R>> {
    let instead = match parting {
        Parting::Fields(fields) => {
            add_fields(&mut answer, fields);
            None
        }
        Parting::Replace(reply) => Some(reply),
        Parting::Keep(ticket) => {
            let kept = Kept::new(gate, ticket, reading);
            return answer.map(|body| GateBody::kept(body, kept));
        }
        Parting::Accept { parked, room, slot } => match slot.take_request() {
            // Most answers are none of that: their futures are without it.
            Some(request) => Box::pin(accept::<G, F>(&gate, parked, request, room)).await,
            None => None,
        },
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
    let pick_up = gate.pick_up(&mut parked, &mut PartsView::<F>::new(&mut parts));
    let head = head::<F>(&parts);
    let body = match pick_up {
        PickUp::Whole if room.hold(&head) => read_whole(body, &mut room).await,
        PickUp::Whole | PickUp::Head => None,
        PickUp::Nothing => return None,
    };
    gate.accept(parked, head, body).await
}
