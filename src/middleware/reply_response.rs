//! Conversion of a `Reply` to an `http` response, and the headers that a gate adds to a response.

use std::{borrow::Cow, convert::Infallible};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{self, InvalidHeaderName},
};

use super::gate_body::GateBody;
use crate::reply::{HeaderSet, Reply, SharedReply};

/// Converts a reply to a response.
#[must_use]
pub fn response_from_reply<B>(reply: Reply) -> Response<GateBody<B>> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = Some(reply.body).filter(|body| !body.is_empty() && !forbids_body(status));
    let mut response = Response::new(GateBody::from_reply(body));
    *response.status_mut() = status;
    append_headers(&mut response, reply.headers);
    for (name, value) in reply.binary_headers {
        if let (Ok(name), Ok(value)) =
            (parse_header_name(&name), HeaderValue::from_maybe_shared(value))
        {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// Converts a reply that other requests share to a response.
pub(super) fn shared_response<B>(reply: &SharedReply) -> Response<GateBody<B>> {
    // All copies share the headers and the bytes of the body.
    let shared = reply.get_or_convert(|reply| {
        let body = reply.body.clone();
        let response = response_from_reply::<Infallible>(reply);
        let is_sent = !body.is_empty() && !forbids_body(response.status());
        response.map(|_| is_sent.then_some(body))
    });
    match shared {
        Some(response) => response.clone().map(GateBody::from_reply),
        None => response_from_reply(reply.reply().clone()),
    }
}

/// Returns true if a response of this status must be built without a body. hyper would send the
/// body of a 205. It drops that of the others, but axum has set `content-length` by then, which a
/// 204 must not have (RFC 9110 section 8.6). A stored response may have any of these statuses.
fn forbids_body(status: StatusCode) -> bool {
    status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        )
}

/// Parses a header name. The names in quota replies are constants, which costs neither parsing nor
/// an allocation.
fn parse_header_name(name: &str) -> Result<HeaderName, InvalidHeaderName> {
    static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    static QUOTA: HeaderName = HeaderName::from_static("ratelimit");
    Ok(match name {
        "ratelimit-policy" => POLICY.clone(),
        "ratelimit" => QUOTA.clone(),
        "retry-after" => header::RETRY_AFTER,
        "content-type" => header::CONTENT_TYPE,
        "cache-control" => header::CACHE_CONTROL,
        name => return HeaderName::from_bytes(name.as_bytes()),
    })
}

/// Appends headers, so that two layers with a policy each form one list (RFC 9651 section 4.2).
pub(super) fn append_headers<B>(response: &mut Response<B>, headers: HeaderSet) {
    for (name, value) in headers.into_iter().filter(|(_, value)| value.is_ascii()) {
        // Reuses the text without a copy.
        let value = match value {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => text.into(),
        };
        append_header(response, &name, value);
    }
}

/// Appends one header with an ASCII value, like [`append_headers`].
pub(super) fn append_header<B>(response: &mut Response<B>, name: &str, value: Bytes) {
    let (name, value) = (parse_header_name(name), HeaderValue::from_maybe_shared(value));
    if let (Ok(name), Ok(value)) = (name, value) {
        response.headers_mut().append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::Empty;

    use super::*;

    #[test]
    fn bodyless_status_has_an_empty_body() {
        for (status, bytes) in [(200, 4), (204, 0), (205, 0), (304, 0)] {
            let reply = Reply::new(status).body("body");
            let repeated = SharedReply::new(reply.clone());
            let all = [response_from_reply::<Empty<Bytes>>(reply), shared_response(&repeated)];
            for response in all {
                assert_eq!(response.body().size_hint().exact(), Some(bytes), "{status}");
            }
        }
    }
}
