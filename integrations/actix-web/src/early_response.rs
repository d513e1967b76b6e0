//! Responses to requests that have not reached the inner service, so that their body is unread.

use actix_web::{
    Error, HttpMessage as _, HttpResponse,
    body::EitherBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
};
use futures_util::future::{Either, LocalBoxFuture, Ready, ready};

/// Response with the body of the inner service, or with the body of a reply.
pub(crate) type GatedResponse<B> = ServiceResponse<EitherBody<B>>;

/// Response that is available at once. Without a request body to wait for it costs no box.
pub(crate) type EarlyResponse<B> = Either<
    Ready<Result<GatedResponse<B>, Error>>,
    LocalBoxFuture<'static, Result<GatedResponse<B>, Error>>,
>;

/// Responds without calling the inner service.
///
/// actix polls for the response before it looks for the rest of the request's body, and closes the
/// connection if the response comes before the end of the body. Yielding once lets it find that
/// end.
pub(crate) fn respond_early<B: 'static>(
    mut request: ServiceRequest,
    response: HttpResponse,
) -> EarlyResponse<B> {
    let has_body = !matches!(request.take_payload(), Payload::None);
    let result = Ok(request.into_response(response.map_into_right_body()));
    if !has_body {
        return Either::Left(ready(result));
    }
    Either::Right(Box::pin(async {
        tokio::task::yield_now().await;
        result
    }))
}
