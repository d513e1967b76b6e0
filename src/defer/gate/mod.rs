//! `DeferLayer`: accepts requests that its inner lock finds busy.
//!
//! The gate first checks whether a request may be deferred at all. It attaches a
//! [`ParkingSlot`](crate::gate::ParkingSlot) that tells the lock how long to wait, and which record
//! to look up. The request passes at once. If the lock has parked it, and the busy response still
//! stands on the way out, the gate inspects the parked request. One that can't be stored is refused
//! before its body is read. Otherwise it is read, stored, and answered with 202.

mod accept_span;
mod applied_preferences;
mod credential_header_settings;
mod credential_warning;
mod defer_layer;
mod defer_replies;
mod direct_response;
mod enqueue_request;
mod gate_impl;
mod idempotency_and_direct_run_settings;
mod inspect_request;
mod limit_settings;
mod merge_settings;
mod missing_lock;
mod owner_and_extension_settings;
mod request_owner;
mod request_size_and_buffer_settings;
mod requires_upgrade;
mod retry_delay_expiry_settings;
mod status_path_and_webhook_settings;
#[cfg(test)]
mod tests;
mod trigger_settings;
mod undeferred_get_warning;
mod validate_sharing_and_buffer;

pub use self::{
    defer_layer::DeferLayer,
    gate_impl::{DeferCandidate, DeferTicket},
};
