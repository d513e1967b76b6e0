//! `ParkedPayload`: the unread payload of a request, which an inner layer leaves to an outer one,
//! and how the outer one reads it.

use std::{cell::RefCell, fmt, rc::Rc};

use actix_web::{
    HttpMessage as _, HttpRequest,
    dev::{Payload, ServiceRequest},
    http::header::CONTENT_LENGTH,
    rt::time::timeout,
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use lockgate::driver::BodyBudget;

/// Payload that an inner layer has parked, or the empty slot for it. The slot travels in the
/// request's extensions, and is removed from them before it is filled.
///
/// Only the payload is parked, since the rest of the request comes back with the response.
#[derive(Clone, Default)]
pub(crate) struct ParkedPayload(Rc<RefCell<Option<Payload>>>);

impl ParkedPayload {
    /// Parks the payload of a request if an outer layer has provided a slot.
    pub(crate) fn park_payload(request: &mut ServiceRequest) {
        let slot = request.extensions_mut().remove::<Self>();
        if let Some(Self(payload)) = slot {
            payload.replace(Some(request.take_payload()));
        }
    }

    pub(crate) fn take_payload(&self) -> Option<Payload> {
        self.0.take()
    }
}

impl fmt::Debug for ParkedPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedPayload").finish_non_exhaustive()
    }
}

/// Reads a payload completely. Returns `None` if the budget is exhausted, the payload breaks off,
/// or reading takes too long.
pub(crate) async fn read_parked_payload(
    request: &HttpRequest,
    payload: Payload,
    budget: &mut BodyBudget,
) -> Option<Bytes> {
    // The declared length avoids reading a body that will be refused.
    let length = if matches!(payload, Payload::None) { Some(0) } else { declared_length(request) };
    if !budget.try_declare_length(length) {
        return None;
    }
    timeout(budget.read_timeout(), collect_payload(payload, budget)).await.ok()?
}

/// Returns the `Content-Length`, if there is one. actix has refused values that are not numbers.
fn declared_length(request: &HttpRequest) -> Option<u64> {
    let length = request.headers().get(CONTENT_LENGTH)?.to_str().ok()?;
    Some(length.parse().unwrap_or(u64::MAX))
}

async fn collect_payload(mut payload: Payload, budget: &mut BodyBudget) -> Option<Bytes> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.ok()?;
        if !budget.try_grow_to(body.len() + chunk.len()) {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body.freeze())
}
