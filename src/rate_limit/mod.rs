//! Rate limits: a number of requests per window and client, by one policy or several.
//!
//! # Steps of a request
//!
//! Before it awaits anything, a [`RateLimitLayer`] compares the request with its [`AccessLists`],
//! and reads the key of each of its [policies](Policy) and the cost. Then:
//!
//! 1. A refusal in the refusal cache is repeated at once. The store has said how long it lasts, and
//!    that time counts from before the call was sent, so the repetition is exact.
//! 2. A policy with a [quota lease](Policy::quota_lease) spends a leased unit without a call.
//! 3. Otherwise one call charges all policies that have the same key or one group, all or none.
//!    Several keys need a call each, in order. If one call refuses, the charges of the earlier ones
//!    are refunded: another request may be refused meanwhile, but none is admitted beyond a quota.
//! 4. [Shadow](Policy::shadow) policies are charged last, and never refuse.
//!
//! A request within its quotas runs, and its response has the headers `RateLimit-Policy` and
//! `RateLimit`. A request beyond a quota is answered with 429, `Retry-After` and a problem document
//! that names every violated policy. `Retry-After` is the longest wait of these policies: a retry
//! after it is admitted, unless other requests spend the same keys meanwhile. A refused request is
//! not charged, but a [penalty](Policy::penalty) counts it. A request that costs more than the
//! capacity of a quota is answered with 403, since waiting does not help.
//!
//! Runs of deferred requests are not charged: the requests were, when they were accepted. A layer
//! inside the lock is different, because no request reaches it while the lock is held:
//!
//! - It refuses a run only for its deny lists.
//! - It charges the first run, when that ends or is dropped, even beyond the remaining units.
//! - It charges a run only if the key can be read: credentials are not stored.
//! - It charges no later run, even if the first was refunded for its status or its process died. A
//!   run that was cut off by a shutdown is charged again when it runs again.
//!
//! A layer can adjust charges after the response: refund them for its status, or change them to the
//! cost that the handler has set with [`RateStatus::set_cost`]. A request that is dropped before
//! its handler is called is refunded, except for a call in flight at that moment. After the handler
//! was called, the charge stays.
//!
//! # Counting
//!
//! A quota counts by fixed windows, sliding windows or GCRA; [`Quota`] states the worst case of
//! each. The store decides, by its own clock, for all processes together. Policies of one name
//! share a counter for each key, in whatever layers they are. Policies without a name share it if
//! their quotas are equal.
//!
//! If two layers around one handler have the same policy for one key in the same store, a warning
//! is logged and the request is charged once. It is charged by both layers if:
//!
//! - their quotas differ;
//! - the outer layer charges less, or only in shadow mode;
//! - the inner layer has another penalty, or adjusts its charges.
//!
//! # Without the store
//!
//! While the store is unavailable, each process enforces its share of the quota, starting from the
//! last known remaining units ([`RateLimitOutage::Local`](crate::RateLimitOutage::Local)). A policy
//! may instead admit all requests, or refuse them with 503. Several policies are then asked one
//! after the other, and units spent at earlier ones are not refunded if a later one refuses: fewer
//! requests are admitted, never more. A refusal never counts as an outage.
//!
//! The response to a request admitted this way has no rate headers, and its handler has no
//! [`RateStatus`]. A refusal reports the remaining units and the wait as this process knows them.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
//! use std::time::Duration;
//! use lockgate::{Policy, Quota, Store};
//!
//! let store = Store::memory();
//! let minute = Quota::requests(100).per(Duration::from_secs(60));
//! let limit = store.rate_limiter(Policy::new(minute).with_name("search"));
//! let decision = limit.check("customer:7", 1).await?;
//! assert!(decision.is_admitted());
//! assert_eq!(decision.remaining(), 99);
//! # Ok(()) }
//! ```

mod access_list_document;
mod access_lists;
mod changed_policies;
mod decision;
mod engine;
mod exemption_rules;
mod fleet_policy;
mod gate;
mod limit_inspection;
mod policy_change;
mod policy_cost_and_reactions;
mod policy_document;
mod policy_status;
mod policy_variant;
mod quota;
mod quota_document;
mod quota_text;
mod rate_headers;
mod rate_limiter;
mod rate_refusal;
mod register_policy;
mod response_options;
mod subject_quota;
#[cfg(test)]
mod tests;

pub use self::{
    access_lists::AccessLists,
    changed_policies::ChangedPolicies,
    decision::{Decision, PolicyDecision},
    fleet_policy::FleetPolicy,
    gate::{ChargeCappedError, RateLimitContext, RateLimitLayer, RateLimitTicket, RateStatus},
    limit_inspection::LimitInspection,
    policy_change::PolicyChange,
    policy_cost_and_reactions::Policy,
    policy_status::PolicyStatus,
    policy_variant::PolicyVariant,
    quota::{Quota, QuotaBuilder},
    rate_headers::RateHeaders,
    rate_limiter::RateLimiter,
    rate_refusal::{RateRefusal, RefusalReason},
    subject_quota::SubjectQuota,
};
