//! The operators' console: one resource that an integration mounts, with a page, its assets and a
//! JSON API over the inspection API.
//!
//! Integrations only translate: routing, the guard, the check of the origin, permissions and every
//! response are here. All values reach the page as JSON, and the page shows them as text.

mod basic_auth;
mod check_slot;
mod console_action;
mod console_assets;
mod console_guard;
mod console_queries;
mod console_reply;
mod console_request;
mod console_resource;
mod console_snapshot;
mod guard_request;
mod local_operator;
mod perform_action;
mod request_origin;
mod snapshot_feed;
#[cfg(test)]
mod tests;

pub use self::{
    basic_auth::{BasicAuth, BasicAuthError},
    console_guard::{ConsoleGuard, GuardVerdict, admit_operator},
    console_reply::ConsoleReply,
    console_request::ConsoleRequest,
    console_resource::ConsoleResource,
    guard_request::GuardRequest,
    local_operator::LocalOperator,
    snapshot_feed::ConsoleEvents,
};
