//! Headers of actix's responses and errors: appends headers to a response, and reads the headers
//! and the body that a response or an error will send.

use std::{borrow::Cow, cell::Cell};

use actix_web::{
    Error,
    body::{BodySize, BoxBody, MessageBody},
    dev::ServiceResponse,
    error::InternalError,
    http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, InvalidHeaderName},
};
use bytes::Bytes;
use lockgate::HeaderSet;

use crate::request_view::header_pairs;

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
