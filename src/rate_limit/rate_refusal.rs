//! Replies to refused requests.

use std::time::Duration;

use super::{
    policy_status::PolicyStatus,
    rate_headers::{RateHeaders, format_number, push_structured_string},
};
use crate::{
    durations::ceil_secs,
    reply::{HeaderSet, Reply, problem},
};

/// Refusal of a request by a `RateLimitLayer`, from which the reply is made.
#[derive(Debug, Clone, Copy)]
pub struct RateRefusal<'a> {
    pub(super) reason: RefusalReason,
    pub(super) policies: &'a [PolicyStatus<'a>],
    pub(super) headers: RateHeaders,
    pub(super) expose_headers: bool,
}

/// Reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// A quota is spent: 429 with `Retry-After`.
    QuotaExceeded,
    /// The cost exceeds the capacity of a quota, so the request would be refused at any time: 403.
    CostAboveQuota,
    /// The client is on the deny list: 403.
    Denied,
}

impl<'a> RateRefusal<'a> {
    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        self.reason
    }

    /// Returns the status of each policy of the layer. Empty for a denied client, since no policy
    /// was asked.
    #[must_use]
    pub fn policies(&self) -> &'a [PolicyStatus<'a>] {
        self.policies
    }

    /// Returns the policies that refuse the request.
    pub fn violated(&self) -> impl Iterator<Item = &'a PolicyStatus<'a>> + use<'a> {
        self.policies.iter().filter(|status| status.violated)
    }

    /// Returns the wait in whole seconds, rounded up: the longest of all policies that refuse the
    /// request. `None` if waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let wait_times = self.violated().map(|status| ceil_secs(status.wait_time()));
        (self.reason == RefusalReason::QuotaExceeded)
            .then(|| Duration::from_secs(wait_times.max().unwrap_or(1)))
    }

    /// Returns `Retry-After` and the rate headers, by the settings of the layer.
    #[must_use]
    pub fn headers(&self) -> HeaderSet {
        let mut headers = HeaderSet::new();
        self.append_headers(&mut headers);
        headers
    }

    /// Returns the default reply: 429 with a problem document (RFC 9457) that names the refusing
    /// policies, or 403.
    #[must_use]
    pub fn reply(&self) -> Reply {
        let (status, kind, title) = match self.reason {
            RefusalReason::QuotaExceeded => (429, problem::QUOTA_EXCEEDED, "Too many requests"),
            RefusalReason::CostAboveQuota => {
                (403, problem::COST_OVER_QUOTA, "The request costs more than its quota ever has")
            }
            RefusalReason::Denied => (403, problem::DENIED, "Requests of this client are refused"),
        };
        let mut reply = Reply::new(status);
        reply.body = self.problem_document(status, kind, title).into();
        reply.headers.reserve(5);
        reply = reply.header("content-type", "application/problem+json");
        reply = reply.header("cache-control", "no-store");
        self.append_headers(&mut reply.headers);
        reply
    }

    /// Returns the reply for gRPC clients, such as those of tonic: a response without a body, with
    /// the rate headers and a `grpc-status`. The status is `RESOURCE_EXHAUSTED` (8), or
    /// `PERMISSION_DENIED` (7) for a denied client.
    #[must_use]
    pub fn grpc_reply(&self) -> Reply {
        let (code, message) = match self.reason {
            RefusalReason::QuotaExceeded => ("8", "too many requests"),
            RefusalReason::CostAboveQuota => {
                ("8", "the request costs more than its quota ever has")
            }
            RefusalReason::Denied => ("7", "requests of this client are refused"),
        };
        let mut reply = Reply::new(200)
            .header("content-type", "application/grpc")
            .header("grpc-status", code)
            .header("grpc-message", message);
        self.append_headers(&mut reply.headers);
        reply
    }

    fn append_headers(&self, headers: &mut HeaderSet) {
        if let Some(wait) = self.retry_after() {
            headers.push(("retry-after".into(), format_number(wait.as_secs()).into()));
        }
        self.headers.append_to(self.expose_headers, self.policies, headers);
    }

    /// Writes the document by hand, since refusals must be cheap. Names are quoted as in the rate
    /// headers, so that clients find the same ones in both.
    fn problem_document(&self, status: u16, kind: &str, title: &str) -> String {
        let name_lengths = self.violated().map(|status| status.name.len() + 3);
        let mut out =
            String::with_capacity(kind.len() + title.len() + 80 + name_lengths.sum::<usize>());
        for part in ["{\"type\":\"", kind, "\",\"title\":\"", title, "\",\"status\":"] {
            out.push_str(part);
        }
        out.push_str(itoa::Buffer::new().format(status));
        if self.reason != RefusalReason::Denied {
            out.push_str(",\"violated-policies\":");
            let mut separator = '[';
            for status in self.violated() {
                out.push(separator);
                push_structured_string(status.name, &mut out);
                separator = ',';
            }
            out.push(']');
        }
        out.push('}');
        out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sample_policy_status(name: &str, retry: Option<u64>) -> PolicyStatus<'_> {
        let (window, reset) = (Duration::from_secs(60), Duration::from_millis(2_500));
        let (violated, retry) = (retry.is_some(), Duration::from_millis(retry.unwrap_or(0)));
        PolicyStatus {
            name,
            limit: 3,
            window,
            remaining: 0,
            reset_after: reset,
            retry_after: retry,
            violated,
        }
    }

    fn rate_refusal<'a>(
        reason: RefusalReason,
        statuses: &'a [PolicyStatus<'a>],
    ) -> RateRefusal<'a> {
        RateRefusal {
            reason,
            policies: statuses,
            headers: RateHeaders::Draft,
            expose_headers: false,
        }
    }

    fn header_value<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        let mut named = reply.headers.iter().filter(|(n, _)| n == name);
        let value = named.next().map(|(_, value)| &**value);
        assert!(named.next().is_none(), "{name} twice: {reply:?}");
        value
    }

    fn parse_problem(reply: &Reply) -> Value {
        assert_eq!(header_value(reply, "content-type"), Some("application/problem+json"));
        assert_eq!(header_value(reply, "cache-control"), Some("no-store"));
        serde_json::from_slice(&reply.body).expect("a document")
    }

    #[test]
    fn refusal_lists_violated_policies_and_the_longest_wait() {
        let three = [
            sample_policy_status("a", Some(999)),
            sample_policy_status("b", None),
            sample_policy_status("c\"\\", Some(7_001)),
        ];
        let reply = rate_refusal(RefusalReason::QuotaExceeded, &three).reply();
        assert_eq!(reply.status, 429);
        let expected = json!({
            "type": problem::QUOTA_EXCEEDED,
            "title": "Too many requests",
            "status": 429,
            "violated-policies": ["a", "c\"\\"],
        });
        assert_eq!(parse_problem(&reply), expected);
        assert_eq!(header_value(&reply, "retry-after"), Some("8"));
        let expected = "\"a\";r=0;t=1, \"b\";r=0;t=3, \"c\\\"\\\\\";r=0;t=8";
        assert_eq!(header_value(&reply, "ratelimit"), Some(expected));
    }

    #[test]
    fn hopeless_refusal_has_no_retry_after() {
        let mut statuses =
            [sample_policy_status("a", Some(999)), sample_policy_status("b", Some(0))];
        statuses[1].retry_after = Duration::MAX;
        let reply = rate_refusal(RefusalReason::CostAboveQuota, &statuses).reply();
        assert_eq!((reply.status, header_value(&reply, "retry-after")), (403, None));
        assert_eq!(parse_problem(&reply)["violated-policies"], json!(["a", "b"]));
        let reply = rate_refusal(RefusalReason::Denied, &[]).reply();
        assert_eq!((reply.status, reply.headers.len()), (403, 2), "{reply:?}");
        let document = parse_problem(&reply);
        assert_eq!(
            (&document["type"], &document["status"]),
            (&problem::DENIED.into(), &403.into())
        );
        assert_eq!(document["violated-policies"], Value::Null);
    }

    #[test]
    fn grpc_refusal_uses_grpc_status() {
        let statuses = [sample_policy_status("a", Some(1_000))];
        let reply = rate_refusal(RefusalReason::QuotaExceeded, &statuses).grpc_reply();
        assert_eq!((reply.status, reply.body.len()), (200, 0));
        assert_eq!(header_value(&reply, "content-type"), Some("application/grpc"));
        assert_eq!(header_value(&reply, "grpc-status"), Some("8"));
        assert_eq!(header_value(&reply, "retry-after"), Some("1"));
        assert_eq!(header_value(&reply, "ratelimit"), Some("\"a\";r=0;t=1"));
        assert_eq!(
            header_value(&rate_refusal(RefusalReason::Denied, &[]).grpc_reply(), "grpc-status"),
            Some("7")
        );
    }
}
