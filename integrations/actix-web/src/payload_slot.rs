//! Slot for the unread payload of a request, which an inner layer leaves to an outer one.

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

/// Slot for a payload. It travels in the request's extensions, and is removed from them before it
/// is filled.
///
/// Only the payload is parked, since the rest of the request comes back with the response.
#[derive(Clone, Default)]
pub(crate) struct PayloadSlot(Rc<RefCell<Option<Payload>>>);

impl PayloadSlot {
    /// Parks the payload of a request if an outer layer has provided a slot.
    pub(crate) fn park_payload(request: &mut ServiceRequest) {
        let parking = request.extensions_mut().remove::<Self>();
        if let Some(Self(place)) = parking {
            place.replace(Some(request.take_payload()));
        }
    }

    pub(crate) fn take_payload(&self) -> Option<Payload> {
        self.0.take()
    }
}

impl fmt::Debug for PayloadSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadSlot").finish_non_exhaustive()
    }
}

/// Reads a payload completely. Returns `None` if the budget is exhausted, the payload breaks off,
/// or reading takes too long.
pub(crate) async fn read_within_budget(
    request: &HttpRequest,
    payload: Payload,
    room: &mut BodyBudget,
) -> Option<Bytes> {
    // The declared length avoids reading a body that will be refused.
    let length = if matches!(payload, Payload::None) { Some(0) } else { declared_length(request) };
    if !room.try_declare_length(length) {
        return None;
    }
    timeout(room.read_timeout(), collect_payload(payload, room)).await.ok()?
}

/// Returns the `Content-Length`, if there is one. actix has refused values that are not numbers.
fn declared_length(request: &HttpRequest) -> Option<u64> {
    let length = request.headers().get(CONTENT_LENGTH)?.to_str().ok()?;
    Some(length.parse().unwrap_or(u64::MAX))
}

async fn collect_payload(mut payload: Payload, room: &mut BodyBudget) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.ok()?;
        if !room.try_grow_to(whole.len() + chunk.len()) {
            return None;
        }
        whole.extend_from_slice(&chunk);
    }
    Some(whole.freeze())
}
