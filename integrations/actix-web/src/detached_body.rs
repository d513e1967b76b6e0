//! Response bodies of a detached call, for its client: buffered, or from a channel.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use tokio::sync::mpsc;

use crate::ticketed_body::{BrokenBodyError, ChunkResult};

/// Creates a body from chunks that were read before, with the size of the original body.
pub(crate) fn buffered_body(items: Vec<ChunkResult>, size: BodySize) -> BoxBody {
    BoxBody::new(BufferedBody { items: items.into(), size })
}

struct BufferedBody {
    items: VecDeque<ChunkResult>,
    size: BodySize,
}

impl MessageBody for BufferedBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        Poll::Ready(self.items.pop_front())
    }
}

/// Creates a body from a channel, in which `None` marks the end.
pub(crate) fn channel_body(items: mpsc::Receiver<Option<ChunkResult>>) -> BoxBody {
    BoxBody::new(ChannelBody(Some(items)))
}

/// Body from a channel; `None` after its end.
struct ChannelBody(Option<mpsc::Receiver<Option<ChunkResult>>>);

impl MessageBody for ChannelBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        let Some(items) = &mut self.0 else { return Poll::Ready(None) };
        let item = ready!(items.poll_recv(cx));
        if !matches!(item, Some(Some(Ok(_)))) {
            self.0 = None;
        }
        // Without the mark the body broke off, since its task has ended.
        Poll::Ready(item.unwrap_or_else(|| Some(Err(BrokenBodyError.into()))))
    }
}
