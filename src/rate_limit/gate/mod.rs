//! `RateLimitLayer`: its keys and settings, and its steps around a request.

mod exemption_settings;
mod gate_impl;
mod key_constructors;
mod last_policy_settings;
mod quota_lookup;
mod rate_limit_context;
mod rate_limit_layer;
mod rate_limit_settings;
mod rate_limit_ticket;
mod rate_status;
mod read_request;
mod refusal_reply_cache;
mod response_settings;
mod run_charge;

pub(super) use self::rate_limit_layer::policy_conflict_error;
pub use self::{
    rate_limit_context::RateLimitContext,
    rate_limit_layer::RateLimitLayer,
    rate_limit_ticket::RateLimitTicket,
    rate_status::{ChargeCappedError, RateStatus},
};
