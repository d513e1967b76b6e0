//! The response fields of draft-ietf-httpapi-ratelimit-headers-10.
//!
//! `RateLimit-Policy: "name";q=100;w=60` and `RateLimit: "name";r=99;t=60`: lists of strings with
//! parameters (RFC 9651). `w` and `t` are whole seconds, rounded up.

use super::{limiter::Decision, quota::Policy};
use crate::{
    clock::seconds,
    reply::{Fields, Reply, problem},
};

pub(super) fn fields(policy: &Policy, decision: &Decision) -> Fields {
    // The name has no characters that would need escaping in a structured string.
    let (name, quota) = (policy.label(), policy.quota());
    let (q, w) = (quota.limit(), seconds(quota.window()));
    let (r, t) = (decision.remaining(), seconds(decision.reset()));
    vec![
        ("ratelimit-policy".into(), format!("\"{name}\";q={q};w={w}")),
        ("ratelimit".into(), format!("\"{name}\";r={r};t={t}")),
    ]
}

pub(super) fn refusal(policy: &Policy, decision: &Decision) -> Reply {
    let mut reply = Reply::problem(429, problem::QUOTA, "Too many requests")
        .member("violated-policies", vec![policy.label()])
        .retry_after(decision.reset());
    reply.fields.extend(fields(policy, decision));
    reply
}
