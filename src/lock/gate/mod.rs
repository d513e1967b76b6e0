//! `LockLayer`: its keys and settings, and its steps around a request.

mod acquire;
mod gate_impl;
mod hold_settings;
mod keys;
mod lock_layer;
mod settings;

pub(super) use self::gate_impl::would_deadlock_reply;
pub use self::lock_layer::LockLayer;
