//! Conversion of replies to actix responses and errors, and the headers of responses and errors.

use std::{borrow::Cow, cell::Cell, fmt};

use actix_web::{
    Error, HttpResponse, ResponseError,
    body::{BodySize, BoxBody, MessageBody},
    dev::ServiceResponse,
    error::InternalError,
    http::{
        StatusCode,
        header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, InvalidHeaderName},
    },
};
use bytes::Bytes;
use lockgate::{HeaderSet, Reply, SharedReply};

use crate::request_view::header_pairs;

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

/// Appends headers, so that the policies of two layers form one list (RFC 9651 section 4.2).
pub(crate) fn append_headers(headers: &mut HeaderMap, added: HeaderSet) {
    for (name, value) in added.into_iter().filter(|(_, value)| value.is_ascii()) {
        // Moves the text without a copy.
        let value = match value {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => text.into(),
        };
        append_header(headers, &name, value);
    }
}

/// Like [`append_headers`], for one header with an ASCII value.
pub(crate) fn append_header(headers: &mut HeaderMap, name: &str, value: Bytes) {
    if let (Ok(name), Ok(value)) = (parse_header_name(name), HeaderValue::from_maybe_shared(value))
    {
        headers.append(name, value);
    }
}

/// Parses a header name. The names on every response of a rate limit are constants, which saves
/// parsing and an allocation.
fn parse_header_name(name: &str) -> Result<HeaderName, InvalidHeaderName> {
    static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    static QUOTA: HeaderName = HeaderName::from_static("ratelimit");
    Ok(match name {
        "ratelimit-policy" => POLICY.clone(),
        "ratelimit" => QUOTA.clone(),
        name => return HeaderName::from_bytes(name.as_bytes()),
    })
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

/// Returns the headers of a response, with the `Content-Length` that the server will add.
pub(crate) fn response_headers<B: MessageBody>(
    response: &ServiceResponse<B>,
) -> Vec<(String, Vec<u8>)> {
    let mut headers = header_pairs(response.headers());
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    if let (BodySize::Sized(length), false) = (response.response().body().size(), has_length) {
        headers.push((CONTENT_LENGTH.as_str().to_owned(), length.to_string().into_bytes()));
    }
    headers
}

/// Returns the headers of the response that an error will become.
///
/// Some errors produce their response and its status only once (`InternalError::from_response`), so
/// the response is put back for the next caller.
pub(crate) fn error_headers(error: &mut Error) -> Vec<(String, Vec<u8>)> {
    error_headers_and_body(error).0
}

/// Like [`error_headers`], with the body of the response if it is complete.
pub(crate) fn error_headers_and_body(error: &mut Error) -> (Vec<(String, Vec<u8>)>, Option<Bytes>) {
    let status = error.as_response_error().status_code();
    let response = error.error_response();
    let headers = header_pairs(response.headers());
    let (response, body) = response.into_parts();
    let body = body.try_into_bytes();
    let (body, response) = match body {
        Ok(bytes) => (Some(bytes.clone()), response.set_body(BoxBody::new(bytes))),
        Err(body) => (None, response.set_body(body)),
    };
    if error.as_response_error().status_code() == status {
        let response = Cell::new(Some(response));
        error.add_response_mapper(move |later| response.take().unwrap_or(later));
    } else {
        *error = InternalError::from_response(error.to_string(), response).into();
    }
    (headers, body)
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
