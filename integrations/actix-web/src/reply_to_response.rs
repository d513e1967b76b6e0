//! Conversion of replies to responses of actix, and to errors of actix where there is no request.

use std::fmt;

use actix_web::{
    Error, HttpResponse, ResponseError,
    body::BoxBody,
    http::{
        StatusCode,
        header::{HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use lockgate::{Reply, SharedReply};

use crate::response_and_error_headers::append_headers;

/// Converts a reply to a response of actix.
pub(crate) fn response_from_reply(reply: Reply) -> HttpResponse {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = if reply.body.is_empty() || forbids_body(status) {
        HttpResponse::new(status)
    } else {
        HttpResponse::with_body(status, BoxBody::new(reply.body))
    };
    append_headers(response.headers_mut(), reply.headers);
    for (name, value) in reply.binary_headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// Parts of a shared reply's response, copied for each request.
struct CachedResponseParts {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

/// Converts a reply that many requests share.
pub(crate) fn shared_response(reply: &SharedReply) -> HttpResponse {
    let cached_parts = reply.get_or_convert(|reply| {
        let body = reply.body.clone();
        let response = response_from_reply(reply);
        let headers = response.headers().iter();
        let headers = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
        CachedResponseParts { status: response.status(), headers, body }
    });
    let Some(CachedResponseParts { status, headers, body }) = cached_parts else {
        return response_from_reply(reply.reply().clone());
    };
    let mut response = if body.is_empty() || forbids_body(*status) {
        HttpResponse::new(*status)
    } else {
        HttpResponse::with_body(*status, BoxBody::new(body.clone()))
    };
    for (name, value) in headers {
        response.headers_mut().append(name.clone(), value.clone());
    }
    response
}

/// Returns true if a response with this status has no body. actix would send the body, and the
/// client would take it for the start of the next response; the tower driver and hyper drop it. A
/// stored response may have such a status.
fn forbids_body(status: StatusCode) -> bool {
    status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        )
}

/// Reply as an error, for a response without a request.
///
/// If a gate has stopped the inner call, actix's `HttpRequest` is dropped with it, and without a
/// request there is no `ServiceResponse`. The server turns the error into the response, and outer
/// gates treat it as that response.
pub(crate) struct ReplyError(Reply);

impl ReplyError {
    pub(crate) fn from_reply(reply: Reply) -> Error {
        Self(reply).into()
    }
}

impl ResponseError for ReplyError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        response_from_reply(self.0.clone())
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by lockgate: {}", self.status_code())
    }
}

impl fmt::Debug for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplyError").field(&self.status_code()).finish()
    }
}

#[cfg(test)]
mod tests {
    use actix_web::body::{BodySize, MessageBody as _};

    use super::*;

    #[test]
    fn bodyless_status_has_an_empty_body() {
        for (status, size) in
            [(200, BodySize::Sized(4)), (204, BodySize::Sized(0)), (304, BodySize::Sized(0))]
        {
            let mut reply = Reply::new(status);
            reply.body = "body".into();
            assert_eq!(response_from_reply(reply).body().size(), size, "{status}");
        }
    }
}
