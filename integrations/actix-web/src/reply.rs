//! A reply of ours as actix's response.

use actix_web::{
    HttpResponse,
    body::BoxBody,
    http::{
        StatusCode,
        header::{HeaderMap, HeaderName, HeaderValue},
    },
};
use lockgate::{Fields, Reply};

pub(crate) fn response(reply: Reply) -> HttpResponse {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = if reply.body.is_empty() {
        HttpResponse::new(status)
    } else {
        HttpResponse::with_body(status, BoxBody::new(reply.body))
    };
    add_fields(response.headers_mut(), reply.fields);
    response
}

/// Appends, so that two layers with a policy each make one list (RFC 9651 section 4.2).
pub(crate) fn add_fields(headers: &mut HeaderMap, fields: Fields) {
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            headers.append(name, value);
        }
    }
}
