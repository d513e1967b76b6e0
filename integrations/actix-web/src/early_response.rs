//! A request that is answered before anybody has seen its body.

use actix_web::{
    Error, HttpMessage as _, HttpResponse,
    body::EitherBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
};
use futures_util::future::{Either, LocalBoxFuture, Ready, ready};

/// The inner service's own body, or that of a reply of ours.
pub(crate) type GatedResponse<B> = ServiceResponse<EitherBody<B>>;

/// An answer that is there. Without a body to wait for it costs no box.
pub(crate) type EarlyResponse<B> = Either<
    Ready<Result<GatedResponse<B>, Error>>,
    LocalBoxFuture<'static, Result<GatedResponse<B>, Error>>,
>;

/// actix asks for the answer before it looks for what has come of the body, and closes the connection if there is one before
/// the end of the body: so it gets a turn to find that.
pub(crate) fn respond_early<B: 'static>(
    mut request: ServiceRequest,
    response: HttpResponse,
) -> EarlyResponse<B> {
    let has_body = !matches!(request.take_payload(), Payload::None);
    let answer = Ok(request.into_response(response.map_into_right_body()));
    if !has_body {
        return Either::Left(ready(answer));
    }
    Either::Right(Box::pin(async {
        tokio::task::yield_now().await;
        answer
    }))
}
