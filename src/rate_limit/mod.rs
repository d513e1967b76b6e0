//! Rate limits: so many requests per window and client, by one policy or by several.
//!
//! # What happens to a request
//!
//! Behind a `RateLimitLayer`, a request is read before anything is awaited: whether it is on one of the
//! layer's [`AccessLists`], the key of each of its [policies](Policy), what it costs. Then
//!
//! 1. what is *known* to be refused is refused at once: the store has said until when, and that moment was
//!    counted from before it was asked, so that repeating it is exact;
//! 2. what was [charged in advance](Policy::lease) is spent without asking, if a policy is set so;
//! 3. else one call charges the policies that have one key, or one group, all or none of them. With several
//!    keys there is a call for each, in order, and if one refuses, what was charged to those before is
//!    given back: somebody else may be refused in between, nobody is let in who should not be;
//! 4. policies in [shadow](Policy::shadow) are charged last, and have no say.
//!
//! A request within the quotas runs, and its response tells them in `RateLimit-Policy` and `RateLimit`. One
//! beyond is answered with 429, a problem document that names every policy it violates, and `Retry-After`,
//! the longest wait of those: honouring it gets the client in, if nobody else spends its keys. It is not
//! charged for having been refused, unless a [penalty](Policy::penalty) counts refusals. What costs more
//! than a quota ever lets in at once is answered with 403, since no waiting helps. Runs of deferred requests
//! are not charged: they were, when they were accepted. A layer within the lock, to which nobody comes while that is held,
//! refuses no run but those of who is denied by its lists, and charges the first one as it ends or is dropped, more than is
//! left too, where its key can be read: credentials are not stored. If that one is refunded by its status, or its process
//! dies, no later one is charged; cut off by a shutdown, it is charged again when it runs.
//!
//! After the response, charges are put right where a layer is set so: given back by its status, or changed to what
//! the handler has said with [`RateStatus::set_cost`]. A request that is dropped before its handler is called
//! gets back what it was charged, but for a call that is under way just then; once the handler has been called, it
//! stays charged.
//!
//! # How it counts
//!
//! By fixed windows, sliding windows or GCRA: [`Quota`] says what each of them lets in at worst. It is the
//! store that decides, by its own clock, for all processes together. Policies of one name count together for a
//! key, wherever they stand (those without a name: of one quota); when two layers around one handler have the same policy for one key in the
//! same store, the request is charged once (and a warning says so), unless their quotas differ, the outer one takes
//! less or only watches, or the inner one has another penalty or puts its charges right.
//!
//! # Without the store
//!
//! While the store is away, each process goes on alone with its share of the quota, starting from what was
//! left when it was last heard of ([`RateLimitOutage::LocalRateStatus`](crate::RateLimitOutage)); a policy may also admit everybody, or refuse with 503.
//! Several policies are then asked one after the other, and what one refuses the others have counted: less is let in,
//! never more. No refusal ever counts as an outage. Who is let in then is told nothing in fields,
//! and handlers have no [`RateStatus`]; who is refused is told what this process knows: what is left, and when to come back.
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

mod access_lists;
mod decision;
mod engine;
mod gate;
mod policy;
mod policy_status;
mod quota;
mod rate_headers;
mod rate_limiter;
mod rate_refusal;
mod response_options;
#[cfg(test)]
mod tests;

pub use self::{
    access_lists::AccessLists,
    decision::{Decision, PolicyDecision},
    gate::{ChargeCappedError, RateLimitContext, RateLimitGate, RateLimitTicket, RateStatus},
    policy::Policy,
    policy_status::PolicyStatus,
    quota::{Quota, QuotaBuilder},
    rate_headers::RateHeaders,
    rate_limiter::RateLimiter,
    rate_refusal::{RateRefusal, RefusalReason},
    response_options::ResponseOptions,
};
