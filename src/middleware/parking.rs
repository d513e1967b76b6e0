//! Where an unread request waits for the outer layer.

use std::{fmt, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use parking_lot::Mutex;

/// How long the outer layer reads a body before it gives the plain busy answer instead.
const READ: Duration = Duration::from_secs(10);

/// An error of the request's body. Only that there was one counts: nothing is stored then.
#[derive(Debug, Clone, Copy)]
pub(super) struct BrokeOff;

impl fmt::Display for BrokeOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body broke off")
    }
}

impl std::error::Error for BrokeOff {}

pub(super) type AnyRequest = Request<UnsyncBoxBody<Bytes, BrokeOff>>;

/// The place. It travels in the request's extensions and is taken out of them before it is filled:
/// otherwise place, request and extensions would own each other.
#[derive(Clone, Default)]
pub(super) struct Parking(Arc<Mutex<Option<AnyRequest>>>);

impl Parking {
    pub(super) fn park<B>(&self, request: Request<B>)
    where
        B: Body<Data = Bytes> + Send + 'static,
    {
        let request = request.map(|body| body.map_err(|_| BrokeOff).boxed_unsync());
        *self.0.lock() = Some(request);
    }

    pub(super) fn take(&self) -> Option<AnyRequest> {
        self.0.lock().take()
    }
}

/// Reads a body whole, or not at all: `None` if it is longer than `limit`, breaks off, or takes too long.
pub(super) async fn read_whole<B>(body: B, limit: usize) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    // What the client says of its length saves reading what will be refused.
    if usize::try_from(body.size_hint().lower()).map_or(true, |lower| lower > limit) {
        return None;
    }
    tokio::time::timeout(READ, read_up_to(body, limit)).await.ok()?
}

async fn read_up_to<B>(mut body: B, limit: usize) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are not kept: they can't be sent again before a body of known length.
        if let Ok(data) = frame.ok()?.into_data() {
            if whole.len() + data.len() > limit {
                return None;
            }
            whole.extend_from_slice(&data);
        }
    }
    Some(whole.freeze())
}
