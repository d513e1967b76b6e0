//! Request of a run, its call of the routes, and its response.

use std::{future::poll_fn, pin::pin};

use actix_http::{HttpMessage as _, Payload, Request, h1};
use actix_service::Service;
use actix_web::{
    Error,
    body::{BodySize, BoxBody, MessageBody as _},
    dev::{Extensions, ServiceResponse},
    http::{
        Method, Uri,
        header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue},
    },
};
use bytes::{Bytes, BytesMut};
use lockgate::{
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, is_event_stream},
    driver::{HttpRequestHead, ReplayMarker},
};

use crate::{
    missing_extractor_config::log_missing_config, missing_handler_value::log_missing_value,
    request_view::header_pairs,
};

/// Chunks read between two yields to the other runs, for a body that is always ready.
const CHUNKS_PER_YIELD: u64 = 32;

/// Function that puts a snapshot into the extensions of a run.
type ActixExtensionInserter = Box<dyn Fn(&mut Extensions) + Send + Sync>;

/// Returns the inserter of `DeferWorker::restore_extension` for a value.
pub(crate) fn extension_inserter<T: Clone + Send + Sync + 'static>(
    value: T,
) -> ActixExtensionInserter {
    Box::new(move |extensions| {
        extensions.insert(value.clone());
    })
}

/// Builds the request of a run. Returns `None` if actix cannot represent the stored head.
pub(super) fn build_request(
    head: HttpRequestHead,
    body: Bytes,
    marker: &ReplayMarker,
) -> Option<Request> {
    let length = body.len();
    let (_, mut payload) = h1::Payload::create(true);
    payload.unread_data(body);
    let mut request = Request::with_payload(Payload::from(payload));
    let request_head = request.head_mut();
    request_head.method = Method::from_bytes(head.method.as_bytes()).ok()?;
    request_head.uri = Uri::try_from(head.target).ok()?;
    request_head.peer_addr = head.peer;
    for (name, value) in head.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        request_head.headers.append(name, HeaderValue::from_bytes(&value).ok()?);
    }
    request_head.headers.insert(CONTENT_LENGTH, length.into());
    let mut extensions = request.extensions_mut();
    marker.restored_snapshots::<ActixExtensionInserter>().for_each(|put| put(&mut extensions));
    extensions.insert(marker.job().clone());
    extensions.insert(marker.cancellation().clone());
    extensions.insert(marker.clone());
    drop(extensions);
    Some(request)
}

/// Calls the routes, and reads the response up to the limit of its body.
pub(super) async fn call_service<S>(
    service: &S,
    request: Request,
    marker: &ReplayMarker,
    response_limit: usize,
) -> ReplayOutcome
where
    S: Service<Request, Response = ServiceResponse<BoxBody>, Error = Error>,
{
    if poll_fn(|cx| service.poll_ready(cx)).await.is_err() {
        return ReplayOutcome::Failed;
    }
    // An error of a middleware is a response too, as it would be in a server.
    let response = match service.call(request).await {
        Ok(response) => {
            log_missing_value(&response, marker);
            log_missing_config(&response, marker);
            response.into_parts().1
        }
        Err(error) => error.error_response(),
    };
    let status = response.status().as_u16();
    let headers = header_pairs(response.headers());
    let content_type = response.headers().get(CONTENT_TYPE);
    let is_stream = content_type.is_some_and(|value| is_event_stream(value.as_bytes()));
    let body = response.into_body();
    let has_known_size = matches!(body.size(), BodySize::None | BodySize::Sized(_));
    let body = match is_stream {
        true => ReplayBody::Stream,
        false => match read_limited(body, response_limit).await {
            Ok(Some(body)) => ReplayBody::Full(body),
            Ok(None) if has_known_size => ReplayBody::TooLong,
            Ok(None) => ReplayBody::Stream,
            Err(_) => return ReplayOutcome::Failed,
        },
    };
    ReplayOutcome::Answered(ReplayResponse { status, headers, body })
}

/// Reads a body to its end, since a handler may do its work meanwhile. Returns `None` if the body
/// is longer than the limit.
pub(super) async fn read_limited(
    body: BoxBody,
    limit: usize,
) -> Result<Option<Bytes>, Box<dyn std::error::Error>> {
    let (mut body, mut buffer) = (pin!(body), Some(BytesMut::new()));
    for chunk_number in 1_u64.. {
        let Some(chunk) = poll_fn(|cx| body.as_mut().poll_next(cx)).await else { break };
        let chunk = chunk?;
        // A body that is always ready must not block the thread of all runs.
        if chunk_number % CHUNKS_PER_YIELD == 0 {
            tokio::task::yield_now().await;
        }
        buffer = buffer.filter(|buffer| chunk.len() <= limit - buffer.len());
        if let Some(buffer) = &mut buffer {
            buffer.extend_from_slice(&chunk);
        }
    }
    Ok(buffer.map(BytesMut::freeze))
}
