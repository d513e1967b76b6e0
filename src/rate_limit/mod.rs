//! Rate limits: so many requests per window and client.
//!
//! What happens to a request behind a `RateLimitLayer`: its key is read, and one call charges the
//! client's window in the store. A request within the quota runs, and its response tells the quota in
//! `RateLimit-Policy` and `RateLimit`. One beyond it is answered with 429, `Retry-After` and a problem
//! document, and is not charged: honouring `Retry-After` gets the client in.
//!
//! The window is *fixed*: it starts with the client's first request and ends after its length. So no
//! more than the quota is admitted in any one window, and up to twice the quota in a stretch of time
//! that spans the end of one and the start of the next.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
//! use std::time::Duration;
//! use lockgate::{Policy, Quota, Store};
//!
//! let store = Store::memory();
//! let limit = store.rate_limit(Policy::new(Quota::requests(100).per(Duration::from_secs(60))));
//! let decision = limit.check("customer:7", 1).await?;
//! assert!(decision.is_admitted());
//! assert_eq!(decision.remaining(), 99);
//! # Ok(()) }
//! ```

mod decision;
mod engine;
mod facing;
mod fields;
mod gate;
mod limiter;
mod lists;
mod policy;
mod quota;
mod respond;
mod standing;
#[cfg(test)]
mod tests;

pub use self::{
    decision::{Decision, PolicyDecision},
    facing::Facing,
    fields::RateFields,
    gate::{RateLimitFacts, RateLimitGate, RateLimitTicket, RateStatus},
    limiter::RateLimit,
    lists::Lists,
    policy::Policy,
    quota::{Quota, Requests},
    respond::{Reason, Refusal},
    standing::Standing,
};
