//! The seam between engines and frameworks: a [`Gate`] decides about a request before it runs, and
//! settles after it.
//!
//! [`driver`](crate::driver) describes the steps in which a driver runs a gate.

mod address;
mod body_budget;
mod body_ticket;
mod detached_run;
mod direct_run_refusals;
mod direct_run_terms;
#[cfg(test)]
pub(crate) mod fake_request;
mod gate_request;
mod gate_trait;
mod idempotent_run;
mod key_error;
mod key_source;
mod layer_context;
mod lock_layer_presence;
mod log_misconfiguration;
mod loopback_guard;
mod method_filter;
mod missing_value;
mod named_source;
mod parking_slot_for_busy_lock;
mod parse_header_name;
mod remove_from_connection_header;
mod replay_marker;
mod request_body_wait_timer;
mod request_fingerprint;
mod request_kind;
mod request_scope;
mod run_progress;
mod run_until_cancelled;
mod status_probe;

pub use self::gate_trait::{
    Gate, InitialVerdict, LeaveAction, ParkedVerdict, ServiceOutcome, Verdict,
};
pub(crate) use self::{
    address::NetworkSet,
    direct_run_refusals::{DirectRunRefusals, GateId},
    direct_run_terms::{DirectRunTerms, IdempotencyLookup},
    gate_request::hold_route,
    idempotent_run::{BeginOutcome, IdempotentRun, RunLimits, STOPPED_REASON},
    key_source::dedup_keys,
    layer_context::UnderLockMark,
    lock_layer_presence::{has_lock_layer, note_lock_layer},
    method_filter::MethodFilter,
    missing_value::{UnchargedMark, UnlistedMethodMark},
    parking_slot_for_busy_lock::{LockInstruction, StoreObserver},
    parse_header_name::try_parse_header_name,
    remove_from_connection_header::remove_from_connection,
    replay_marker::{REPLAY_HEADER, current_replay, is_replay},
    request_kind::find_extension,
    run_progress::InFlightRunGuard,
};
pub use self::{
    address::{ClientAddress, MissingAddress},
    body_budget::BodyBudget,
    body_ticket::{BodyTicket, NextBodyItem, StoppedBody},
    detached_run::{BodySink, DetachedRun},
    gate_request::{DuplicateHeader, GateRequest, HttpRequestHead, PathParamError, RouteMatch},
    key_error::KeyError,
    key_source::KeySource,
    log_misconfiguration::log_shared_request,
    loopback_guard::LoopbackGuard,
    missing_value::MissingValue,
    parking_slot_for_busy_lock::{BusyLockContext, ParkingSlot},
    replay_marker::{ReplayMarker, RunningJob},
    request_body_wait_timer::{BodyTimeoutError, BodyTimeoutWatch, RequestBodyWaitTimer},
    request_fingerprint::RequestFingerprint,
    request_kind::RequestKind,
    request_scope::RequestScope,
    run_until_cancelled::{CallCompletion, poll_until_cancelled, run_until_cancelled},
    status_probe::StatusProbe,
};
