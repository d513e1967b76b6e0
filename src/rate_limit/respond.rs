//! What a refused request is answered with.

use std::time::Duration;

use super::{
    fields::{RateFields, quote, text},
    standing::Standing,
};
use crate::{
    clock::seconds,
    reply::{Fields, Reply, problem},
};

/// A request that a `RateLimitLayer` refuses, for whoever makes the answer.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    pub(super) reason: Reason,
    pub(super) standings: &'a [Standing<'a>],
    pub(super) kind: RateFields,
    pub(super) exposed: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A quota is spent: 429 with `Retry-After`.
    Spent,
    /// It costs more than the whole of a quota, so it would be refused whenever it came: 403.
    TooCostly,
    /// Its client is on a deny list: 403.
    Denied,
}

impl<'a> Refusal<'a> {
    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// How each policy of the layer stands with the request; nothing for one that is denied, since none
    /// was asked.
    #[must_use]
    pub fn policies(&self) -> &'a [Standing<'a>] {
        self.standings
    }

    /// The policies that refuse it.
    pub fn violated(&self) -> impl Iterator<Item = &'a Standing<'a>> + use<'a> {
        self.standings.iter().filter(|standing| standing.violated)
    }

    /// When to come back, in whole seconds, rounded up: the longest wait of all policies that refuse it.
    /// `None` if no waiting will help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let waits = self.violated().map(|standing| seconds(standing.wait()));
        (self.reason == Reason::Spent).then(|| Duration::from_secs(waits.max().unwrap_or(1)))
    }

    /// `Retry-After` and the fields about quotas, as the layer is set.
    #[must_use]
    pub fn fields(&self) -> Fields {
        let mut fields = Fields::new();
        self.add_fields(&mut fields);
        fields
    }

    /// The usual answer: 429 with a problem document (RFC 9457) that names the policies that refuse, or 403.
    #[must_use]
    pub fn reply(&self) -> Reply {
        let (status, kind, title) = match self.reason {
            Reason::Spent => (429, problem::QUOTA, "Too many requests"),
            Reason::TooCostly => {
                (403, problem::TOO_COSTLY, "The request costs more than its quota ever has")
            }
            Reason::Denied => (403, problem::DENIED, "Requests of this client are refused"),
        };
        let mut reply = Reply::new(status);
        reply.body = self.document(status, kind, title).into();
        reply.fields.reserve(5);
        reply = reply.field("content-type", "application/problem+json");
        reply = reply.field("cache-control", "no-store");
        self.add_fields(&mut reply.fields);
        reply
    }

    /// The answer for clients of gRPC, such as those of tonic: `RESOURCE_EXHAUSTED` (8), or
    /// `PERMISSION_DENIED` (7) for a client that is denied, in the header of an answer without a body, and
    /// the fields about quotas beside it.
    #[must_use]
    pub fn grpc(&self) -> Reply {
        let (code, message) = match self.reason {
            Reason::Spent => ("8", "too many requests"),
            Reason::TooCostly => ("8", "the request costs more than its quota ever has"),
            Reason::Denied => ("7", "requests of this client are refused"),
        };
        let mut reply = Reply::new(200)
            .field("content-type", "application/grpc")
            .field("grpc-status", code)
            .field("grpc-message", message);
        self.add_fields(&mut reply.fields);
        reply
    }

    fn add_fields(&self, fields: &mut Fields) {
        if let Some(wait) = self.retry_after() {
            fields.push(("retry-after".into(), text(wait.as_secs()).into()));
        }
        self.kind.write(self.exposed, self.standings, fields);
    }

    /// Written by hand: it is made for each of the requests that are to be refused cheaply. Names are
    /// quoted as in the fields, so that clients find the same ones in both.
    fn document(&self, status: u16, kind: &str, title: &str) -> String {
        let names = self.violated().map(|standing| standing.name.len() + 3);
        let mut out = String::with_capacity(kind.len() + title.len() + 80 + names.sum::<usize>());
        for part in ["{\"type\":\"", kind, "\",\"title\":\"", title, "\",\"status\":"] {
            out.push_str(part);
        }
        out.push_str(itoa::Buffer::new().format(status));
        if self.reason != Reason::Denied {
            out.push_str(",\"violated-policies\":");
            let mut before = '[';
            for standing in self.violated() {
                out.push(before);
                quote(standing.name, &mut out);
                before = ',';
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

    fn standing(name: &str, retry: Option<u64>) -> Standing<'_> {
        let (window, reset) = (Duration::from_secs(60), Duration::from_millis(2_500));
        let (violated, retry) = (retry.is_some(), Duration::from_millis(retry.unwrap_or(0)));
        Standing { name, limit: 3, window, remaining: 0, reset, retry, violated }
    }

    fn refusal<'a>(reason: Reason, standings: &'a [Standing<'a>]) -> Refusal<'a> {
        Refusal { reason, standings, kind: RateFields::Draft, exposed: false }
    }

    fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        let mut named = reply.fields.iter().filter(|(n, _)| n == name);
        let value = named.next().map(|(_, value)| &**value);
        assert!(named.next().is_none(), "{name} twice: {reply:?}");
        value
    }

    fn document(reply: &Reply) -> Value {
        assert_eq!(field(reply, "content-type"), Some("application/problem+json"));
        assert_eq!(field(reply, "cache-control"), Some("no-store"));
        serde_json::from_slice(&reply.body).expect("a document")
    }

    #[test]
    fn all_violated_policies_are_named_and_the_longest_binds() {
        let three = [standing("a", Some(999)), standing("b", None), standing("c\"\\", Some(7_001))];
        let reply = refusal(Reason::Spent, &three).reply();
        assert_eq!(reply.status, 429);
        let expected = json!({
            "type": problem::QUOTA,
            "title": "Too many requests",
            "status": 429,
            "violated-policies": ["a", "c\"\\"],
        });
        assert_eq!(document(&reply), expected);
        assert_eq!(field(&reply, "retry-after"), Some("8"));
        let told = "\"a\";r=0;t=1, \"b\";r=0;t=3, \"c\\\"\\\\\";r=0;t=8";
        assert_eq!(field(&reply, "ratelimit"), Some(told));
    }

    #[test]
    fn no_wait_is_told_where_none_helps() {
        let mut two = [standing("a", Some(999)), standing("b", Some(0))];
        two[1].retry = Duration::MAX;
        let reply = refusal(Reason::TooCostly, &two).reply();
        assert_eq!((reply.status, field(&reply, "retry-after")), (403, None));
        assert_eq!(document(&reply)["violated-policies"], json!(["a", "b"]));
        let reply = refusal(Reason::Denied, &[]).reply();
        assert_eq!((reply.status, reply.fields.len()), (403, 2), "{reply:?}");
        let document = document(&reply);
        assert_eq!(
            (&document["type"], &document["status"]),
            (&problem::DENIED.into(), &403.into())
        );
        assert_eq!(document["violated-policies"], Value::Null);
    }

    #[test]
    fn grpc_is_told_in_its_own_way() {
        let one = [standing("a", Some(1_000))];
        let reply = refusal(Reason::Spent, &one).grpc();
        assert_eq!((reply.status, reply.body.len()), (200, 0));
        assert_eq!(field(&reply, "content-type"), Some("application/grpc"));
        assert_eq!(field(&reply, "grpc-status"), Some("8"));
        assert_eq!(field(&reply, "retry-after"), Some("1"));
        assert_eq!(field(&reply, "ratelimit"), Some("\"a\";r=0;t=1"));
        assert_eq!(field(&refusal(Reason::Denied, &[]).grpc(), "grpc-status"), Some("7"));
    }
}
