//! A route whose authentication stands before what is deferred, and goes along as a snapshot.

use actix_web::{
    Error, HttpMessage as _,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::header::{AUTHORIZATION, HeaderValue},
    middleware::{Next, from_fn},
    web::{ServiceConfig, resource},
};
use lockgate_actix_web::{DeferLayer, LockLayer};

use super::{super::User, work};

pub(super) fn carried(config: &mut ServiceConfig) {
    let carried = resource("/carried/{id}")
        .to(work)
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new().carry::<User>())
        .wrap(from_fn(authenticate));
    config.service(carried);
}

/// Who it is, if it is told; a run tells nothing.
async fn authenticate(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let token = request.headers().get(AUTHORIZATION).map(HeaderValue::to_str);
    if let Some(Ok(token)) = token {
        let user = User(token.trim_start_matches("Bearer ").to_owned());
        request.extensions_mut().insert(user);
    }
    next.call(request).await
}
