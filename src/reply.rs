//! Responses made by the layers themselves, independent of the framework.
//!
//! actix-web 4 uses `http` 0.2 and axum uses 1.x, so their status codes are different types. A
//! [`Reply`] consists of numbers and text, and each driver converts it to its own response.

use std::{any::Any, borrow::Cow, fmt, sync::OnceLock, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::durations::ceil_secs;

/// Headers to add to a response: names and values. Static text is never copied.
pub type HeaderSet = Vec<(Cow<'static, str>, Cow<'static, str>)>;

/// Complete response: status, headers, body.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The headers, in order; names in lower case.
    pub headers: HeaderSet,
    /// Headers with values other than ASCII text, as in a handler's stored response.
    pub binary_headers: Vec<(String, Bytes)>,
    /// The body; may be empty.
    pub body: Bytes,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are left out: a reply may be a handler's response, which is sealed at rest, or
        // contain the address of a status resource.
        let Self { status, headers, binary_headers, body } = self;
        let text_names = headers.iter().map(|(name, _)| &**name);
        let binary_names = binary_headers.iter().map(|(name, _)| &**name);
        let names: Vec<_> = text_names.chain(binary_names).collect();
        f.debug_struct("Reply")
            .field("status", status)
            .field("headers", &names)
            .field("body_len", &body.len())
            .finish()
    }
}

/// Reply for many requests. It caches the driver's response, which is made once and copied for each
/// request.
#[derive(Debug)]
pub struct SharedReply {
    reply: Reply,
    converted: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl SharedReply {
    pub(crate) fn new(reply: Reply) -> Self {
        Self { reply, converted: OnceLock::new() }
    }

    /// Returns the reply.
    #[must_use]
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Returns the cached response, which the first call makes. `None` if another driver has made
    /// it, with another type.
    pub fn get_or_convert<T: Send + Sync + 'static>(
        &self,
        convert: impl FnOnce(Reply) -> T,
    ) -> Option<&T> {
        self.converted.get_or_init(|| Box::new(convert(self.reply.clone()))).downcast_ref()
    }
}

/// Problem types of this library (RFC 9457 section 3.1.1). Most are URNs, which stay valid without
/// a server.
pub(crate) mod problem {
    pub(crate) const QUOTA_EXCEEDED: &str =
        "https://iana.org/assignments/http-problem-types#quota-exceeded";
    pub(crate) const REDUCED_CAPACITY: &str =
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    pub(crate) const COST_OVER_QUOTA: &str = "urn:lockgate:problem:cost-over-quota";
    pub(crate) const DENIED: &str = "urn:lockgate:problem:denied";
    pub(crate) const BUSY: &str = "urn:lockgate:problem:busy";
    pub(crate) const LOCK_LOST: &str = "urn:lockgate:problem:lock-lost";
    pub(crate) const BODY_TOO_SLOW: &str = "urn:lockgate:problem:body-too-slow";
    pub(crate) const BAD_KEY: &str = "urn:lockgate:problem:bad-key";
    pub(crate) const SERVER_ERROR: &str = "urn:lockgate:problem:server-error";
    pub(crate) const IDEMPOTENCY_KEY_REUSED: &str = "urn:lockgate:problem:idempotency-key-reused";
    pub(crate) const BAD_IDEMPOTENCY_KEY: &str = "urn:lockgate:problem:bad-idempotency-key";
    pub(crate) const JOB_NOT_FOUND: &str = "urn:lockgate:problem:not-found";
    pub(crate) const NOT_CANCELLABLE: &str = "urn:lockgate:problem:not-cancellable";
    pub(crate) const NO_RESPONSE: &str = "urn:lockgate:problem:no-response";
    pub(crate) const NOT_AUTHORIZED: &str = "urn:lockgate:problem:not-authorized";
    pub(crate) const RESPONSE_NOT_RETAINED: &str = "urn:lockgate:problem:response-not-kept";
    pub(crate) const RETENTION_EXPIRED: &str = "urn:lockgate:problem:no-longer-kept";
    pub(crate) const TOO_MANY_IDEMPOTENCY_KEYS: &str =
        "urn:lockgate:problem:too-many-idempotency-keys";
    pub(crate) const METHOD_NOT_ALLOWED: &str = "urn:lockgate:problem:method-not-allowed";
    #[cfg(feature = "console")]
    pub(crate) const BAD_CONSOLE_REQUEST: &str = "urn:lockgate:problem:bad-console-request";
    #[cfg(feature = "console")]
    pub(crate) const NOT_IN_CONSOLE: &str = "urn:lockgate:problem:not-in-console";
    pub(crate) const OUTCOME_UNKNOWN: &str = "urn:lockgate:problem:outcome-unknown";
}

impl Reply {
    /// Creates a reply without headers or body.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), binary_headers: Vec::new(), body: Bytes::new() }
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Creates a problem document (RFC 9457) with `type`, `title` and `status`.
    pub(crate) fn problem(status: u16, kind: &str, title: &str) -> Self {
        let mut doc = Map::new();
        doc.insert("type".into(), kind.into());
        doc.insert("title".into(), title.into());
        doc.insert("status".into(), status.into());
        Self::new(status).with_json("application/problem+json", &Value::Object(doc))
    }

    /// Creates the 503 of a policy that refuses while the store is unavailable. No quota is spent
    /// and no lock is busy.
    pub(crate) fn store_unavailable() -> Self {
        Self::problem(
            503,
            problem::REDUCED_CAPACITY,
            "The service can't coordinate this request right now",
        )
        .retry_after(Duration::from_secs(1))
    }

    /// Creates the 429 for an owner at its limit of idempotency keys. `until_expiry` is the time
    /// until the first key expires. The request has not run.
    pub(crate) fn too_many_idempotency_keys(until_expiry: Duration) -> Self {
        /// Upper bound: the first key may belong to a waiting request, and that usually ends
        /// sooner.
        const MAX_RETRY_AFTER: Duration = Duration::from_secs(60 * 60);
        let title = "Too many idempotency keys are kept: a new one can't be used now";
        Self::problem(429, problem::TOO_MANY_IDEMPOTENCY_KEYS, title)
            .retry_after(until_expiry.min(MAX_RETRY_AFTER))
    }

    /// Creates the 500 of a misconfigured application, as problem+json. The log names the fix; the
    /// client gets no details.
    #[must_use]
    pub fn misconfigured() -> Self {
        Self::problem(500, problem::SERVER_ERROR, "The server is not configured rightly")
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::new(status).with_json("application/json", body)
    }

    /// Adds a member to a JSON body.
    pub(crate) fn with_member(mut self, name: &str, value: impl Into<Value>) -> Self {
        let mut doc: Value = serde_json::from_slice(&self.body).unwrap_or_else(|_| json!({}));
        if let Some(map) = doc.as_object_mut() {
            map.insert(name.to_owned(), value.into());
            self.body = doc.to_string().into();
        }
        self
    }

    /// Adds a header. The driver leaves out invalid names and values.
    #[must_use]
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds `Retry-After` in whole seconds, rounded up, at least 1 (RFC 9110 section 10.2.3).
    pub(crate) fn retry_after(self, wait: Duration) -> Self {
        self.header("retry-after", ceil_secs(wait).to_string())
    }

    fn with_json(mut self, kind: &'static str, body: &Value) -> Self {
        self.body = body.to_string().into();
        self.header("content-type", kind).header("cache-control", "no-store")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_debug_hides_values_and_body() {
        let mut reply = Reply::new(200).header("set-cookie", "secret=1").body("a secret");
        reply.binary_headers.push(("x-odd".into(), Bytes::from_static(b"secret")));
        let text = format!("{reply:?}");
        assert_eq!(text, r#"Reply { status: 200, headers: ["set-cookie", "x-odd"], body_len: 8 }"#);
    }
}
