//! The seam between engines and frameworks: a [`Gate`] decides about a request before it runs, and
//! settles after it.
//!
//! [`driver`](crate::driver) describes the steps in which a driver runs a gate.

mod address;
mod body_budget;
mod body_ticket;
mod body_timer;
mod call_completion;
mod detached_run;
#[cfg(test)]
pub(crate) mod fake_request;
mod gate_request;
mod gate_trait;
mod header_name;
mod idempotent_run;
mod key_error;
mod key_source;
mod method_filter;
mod named_source;
mod parking_slot;
mod refusal_tracker;
mod replay_marker;
mod request_fingerprint;
mod request_kind;
mod request_scope;

pub use self::gate_trait::{
    Gate, InitialVerdict, LeaveAction, ParkedVerdict, ServiceOutcome, Verdict,
};
pub(crate) use self::{
    address::NetworkSet,
    header_name::{parse_header_name, remove_from_connection},
    idempotent_run::{BeginOutcome, IdempotentRun, RunLimits, STOPPED_REASON},
    key_source::dedup_keys,
    method_filter::MethodFilter,
    parking_slot::{AttemptMode, DirectRunTerms, IdempotencyLookup, UnderLockMark},
    refusal_tracker::{GateId, RefusalTracker},
    replay_marker::{InFlightRunGuard, REPLAY_HEADER, current_replay, is_replay},
    request_kind::find_extension,
};
pub use self::{
    address::{ClientAddress, MissingAddress},
    body_budget::BodyBudget,
    body_ticket::{BodyTicket, NextBodyItem, StoppedBody},
    body_timer::{BodyTimeoutError, BodyTimer, BodyTimerHandle},
    call_completion::{CallCompletion, poll_until_cancelled, run_until_cancelled},
    detached_run::{BodySink, DetachedRun},
    gate_request::{DuplicateHeader, GateRequest, HttpRequestHead, PathParamError, RouteMatch},
    key_error::{KeyError, log_missing_layer, log_shared_request},
    key_source::KeySource,
    parking_slot::{ParkingContext, ParkingSlot},
    replay_marker::{ReplayMarker, RunningJob},
    request_fingerprint::RequestFingerprint,
    request_kind::RequestKind,
    request_scope::RequestScope,
};
