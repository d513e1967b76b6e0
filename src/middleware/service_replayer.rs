//! `ServiceReplayer`: runs deferred requests through a tower service.

use std::{fmt, marker::PhantomData, panic::AssertUnwindSafe, pin::pin};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header,
};
use http_body::Body;
use http_body_util::BodyExt as _;
use tower_service::Service;

use super::framework::Framework;
use crate::{
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, Replayer, is_event_stream},
    gate::{HttpRequestHead, ReplayMarker},
};

/// Inserts a snapshot into the extensions of a run.
pub type ExtensionInserter = Box<dyn Fn(&mut Extensions) + Send + Sync>;

/// Returns the inserter of a value, for `DeferWorker::restore_extension`.
pub fn extension_inserter<T: Clone + Send + Sync + 'static>(value: T) -> ExtensionInserter {
    Box::new(move |extensions| {
        extensions.insert(value.clone());
    })
}

/// Replayer over a service: an axum `Router`, or any other service that can be cloned.
///
/// Give it the routes *inside* the authentication layer, with their `LockLayer` and `DeferLayer`:
/// credentials are not stored, so a replay has none to show.
pub struct ServiceReplayer<S, B, F> {
    service: S,
    types: PhantomData<fn() -> (B, F)>,
}

impl<S, B, F> ServiceReplayer<S, B, F> {
    /// Creates a replayer into this service, with request bodies of type `B`.
    pub fn new(service: S) -> Self {
        Self { service, types: PhantomData }
    }
}

impl<S, B, R, F> Replayer for ServiceReplayer<S, B, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Send,
    F: Framework,
    B: From<Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        let service = self.service.clone();
        let scope = marker.clone();
        let run = async move {
            match build_request::<B, F>(head, body, marker) {
                Some(request) => call_service(service, request, limit).await,
                None => ReplayOutcome::Failed,
            }
        };
        // A panic is a failed attempt: it must affect neither this task nor the next job.
        Box::pin(
            scope.scope(
                AssertUnwindSafe(run)
                    .catch_unwind()
                    .map(|outcome| outcome.unwrap_or(ReplayOutcome::Panicked)),
            ),
        )
    }

    fn missing_value(&self, response: &ReplayResponse) -> Option<&'static str> {
        match &response.body {
            ReplayBody::Full(body) => F::missing_value(response.status, body),
            ReplayBody::TooLong | ReplayBody::Stream => None,
        }
    }
}

fn build_request<B: From<Bytes>, F: Framework>(
    head: HttpRequestHead,
    body: Bytes,
    marker: ReplayMarker,
) -> Option<Request<B>> {
    let length = body.len();
    let mut request = Request::new(B::from(body));
    *request.method_mut() = Method::from_bytes(head.method.as_bytes()).ok()?;
    *request.uri_mut() = Uri::try_from(head.target).ok()?;
    for (name, value) in head.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
    }
    request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    if let Some(peer) = head.peer {
        F::insert_peer_addr(request.extensions_mut(), peer);
    }
    marker
        .restored_snapshots::<ExtensionInserter>()
        .for_each(|insert| insert(request.extensions_mut()));
    request.extensions_mut().insert(marker.job().clone());
    request.extensions_mut().insert(marker.cancellation().clone());
    request.extensions_mut().insert(marker);
    Some(request)
}

async fn call_service<S, B, R>(mut service: S, request: Request<B>, limit: usize) -> ReplayOutcome
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if std::future::poll_fn(|cx| service.poll_ready(cx)).await.is_err() {
        return ReplayOutcome::Failed;
    }
    let Ok(response) = service.call(request).await else {
        return ReplayOutcome::Failed;
    };
    let (parts, body) = response.into_parts();
    let Some(body) = read_response_body(&parts.headers, body, limit).await else {
        return ReplayOutcome::Failed;
    };
    let pair = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), value.as_bytes().to_vec())
    };
    let headers = parts.headers.iter().map(pair).collect();
    ReplayOutcome::Answered(ReplayResponse { status: parts.status.as_u16(), headers, body })
}

/// Reads a response body; `None` if it broke off.
pub(crate) async fn read_response_body<R>(
    headers: &HeaderMap,
    body: R,
    limit: usize,
) -> Option<ReplayBody>
where
    R: Body<Data = Bytes>,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let content_type = headers.get(header::CONTENT_TYPE);
    if content_type.is_some_and(|content_type| is_event_stream(content_type.as_bytes())) {
        return Some(ReplayBody::Stream);
    }
    let is_length_known = body.size_hint().exact().is_some();
    let (mut body, mut buffer) = (pin!(body), Some(BytesMut::new()));
    for frame_count in 1_u64.. {
        let Some(frame) = body.frame().await else { break };
        // Trailers are dropped.
        let data = frame.ok()?.into_data().unwrap_or_default();
        buffer = buffer.filter(|buffer| data.len() <= limit - buffer.len());
        // Read to its end even if it is too long to keep: a handler may do its work while its body
        // is read.
        if let Some(buffer) = &mut buffer {
            buffer.extend_from_slice(&data);
        }
        // A body that is always ready must not starve other tasks, or its own timeout.
        if frame_count % 32 == 0 {
            tokio::task::yield_now().await;
        }
    }
    Some(match buffer {
        Some(buffer) => ReplayBody::Full(buffer.freeze()),
        None if is_length_known => ReplayBody::TooLong,
        None => ReplayBody::Stream,
    })
}

impl<S, B, F> fmt::Debug for ServiceReplayer<S, B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceReplayer").finish_non_exhaustive()
    }
}
