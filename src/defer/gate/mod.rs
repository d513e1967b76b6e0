//! `DeferGate`: accepts what its inner lock finds busy.
//!
//! What happens to a request: the gate asks whether it may be deferred at all, and makes a [`Slot`] for
//! it, which tells the lock how long to wait and under which record to look it up. It passes at once. If
//! the lock has parked it, and the busy answer still stands when it comes out, the request is picked up:
//! what can't be stored is refused before its body is read. Then it is read, stored, and answered with 202.
//!
//! [`Slot`]: crate::gate::Slot

mod credential_warning;
mod defer_gate;
mod defer_replies;
mod direct_response;
mod enqueue_request;
mod gate_impl;
mod inspect_request;
mod owner_scoping;
#[cfg(test)]
mod tests;

pub use self::{
    defer_gate::DeferGate,
    gate_impl::{DeferCandidate, DeferTicket},
};
