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
    let mut response = if reply.body.is_empty() || has_no_body(status) {
        HttpResponse::new(status)
    } else {
        HttpResponse::with_body(status, BoxBody::new(reply.body))
    };
    add_fields(response.headers_mut(), reply.fields);
    response
}

/// hyper drops the body of such an answer; actix would send it, and the client take it for the start of
/// the next one. A stored response may be one.
fn has_no_body(status: StatusCode) -> bool {
    status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        )
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

#[cfg(test)]
mod tests {
    use actix_web::body::{BodySize, MessageBody as _};

    use super::*;

    #[test]
    fn an_answer_that_has_no_body_gets_none() {
        for (status, size) in
            [(200, BodySize::Sized(4)), (204, BodySize::Sized(0)), (304, BodySize::Sized(0))]
        {
            let mut reply = Reply::new(status);
            reply.body = "body".into();
            assert_eq!(response(reply).body().size(), size, "{status}");
        }
    }
}
