//! `LockLayer`: its keys and settings, and its steps around a request.

mod acquire_and_begin_run;
mod busy_and_outage_verdicts;
mod busy_lock_settings;
mod busy_status;
mod fence_and_delegation_settings;
mod gate_impl;
mod handover_and_waiter_settings;
mod inspect_request;
mod key_constructors;
mod key_part_settings;
mod lease_settings;
mod lock_entry_context;
mod lock_layer;
mod lock_policy;
mod lock_set_constructors;
mod lock_ticket;
mod loss_and_release_settings;
mod mode_and_method_settings;
mod release_and_loss_response;
mod scope_name_stripes_settings;
mod store_settings;

#[cfg(test)]
pub(super) use self::lock_ticket::AdmittedRequestLocks;
pub use self::{
    busy_status::BusyStatus,
    lock_entry_context::LockEntryContext,
    lock_layer::LockLayer,
    lock_ticket::{LockTicket, UnmatchedRequestTicket},
};
