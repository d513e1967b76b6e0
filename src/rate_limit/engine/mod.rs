//! Engine of the rate limits, one for each store handle: it decides, and caches decisions.
//!
//! The modules, in the order in which a check meets them:
//!
//! - [`refusal_cache`] may refuse at once.
//! - [`quota_lease`] may have a unit that was charged in advance.
//! - [`rate_check`] asks the store. It records in a [`charge_receipt`] the charges that may have to
//!   be refunded or adjusted, which [`background_settlement`] does.
//! - [`outage_state`] and [`outage_limiter`] decide in this process while the store is unavailable.
//! - [`heartbeat_probe_lease_return`] does the work that no check triggers.

mod background_settlement;
mod background_work;
mod charge_receipt;
mod check_request;
mod counter_map;
mod heartbeat_probe_lease_return;
mod outage_limiter;
mod outage_state;
mod policy_follower;
mod quota_lease;
mod rate_check;
mod rate_limit_engine;
mod refusal_cache;

pub(super) use self::rate_limit_engine::RateLimitEngine;
pub(super) use self::{
    background_settlement::SettlementHandle,
    charge_receipt::ChargeReceipt,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{BorrowedCounterId, CounterMap, CounterState},
    rate_check::RateCheckOutcome,
};
