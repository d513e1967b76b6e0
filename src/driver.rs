//! Building blocks for drivers of other frameworks. Applications need nothing of it.
//!
//! A driver runs a [`Gate`] in these steps:
//!
//! - It shows the gate a [`GateRequest`], and the gate *inspects* it without waiting.
//! - It *enters* the gate, which may wait for the store.
//! - If the request passes, it calls the inner service, and drops the call if the gate's
//!   *cancellation* resolves.
//! - It *leaves* the gate when the call has ended.
//!
//! Between entering and leaving, a ticket owns everything that the request has taken. Dropping the
//! driver's future drops the ticket, and its `Drop` starts the release without waiting, blocking or
//! needing a runtime.
//!
//! A driver holds no policy: it extracts, enters, calls, leaves and translates. Three gates
//! ([`LockLayer`](crate::lock::LockLayer), [`RateLimitLayer`](crate::rate_limit::RateLimitLayer)
//! and [`DeferLayer`](crate::defer::DeferLayer)) and two drivers thus make six middlewares. The
//! drivers of this project are [`middleware`](crate::middleware) for tower, and the one in
//! `lockgate-actix-web`.
//!
//! The enums by which a gate instructs a driver are exhaustive: a driver could only guess at a
//! variant that it does not know, so a new variant is a breaking change.

#[cfg(feature = "serve")]
pub use crate::serving::{
    BackgroundWorker, ServerLifecycle, StopPhase, StopSignals, build_thread_app,
};
pub use crate::{
    defer::{
        DeferCandidate, DeferTicket, ReplayBody, ReplayOutcome, ReplayResponse, Replayer,
        StatusEvents, StatusReply, StatusRequest, StatusResource, is_event_stream,
    },
    gate::{
        BodyBudget, BodySink, BodyTicket, BodyTimeoutError, BodyTimeoutWatch, BusyLockContext,
        CallCompletion, ClientAddress, DetachedRun, DuplicateHeader, Gate, GateRequest,
        HttpRequestHead, InitialVerdict, KeyError, KeySource, LeaveAction, LoopbackGuard,
        MissingValue, NextBodyItem, ParkedVerdict, ParkingSlot, PathParamError, ReplayMarker,
        RequestBodyWaitTimer, RequestFingerprint, RequestKind, RequestScope, RouteMatch,
        RunningJob, ServiceOutcome, StatusProbe, StoppedBody, Verdict, log_shared_request,
        poll_until_cancelled, run_until_cancelled,
    },
    lock::{LockEntryContext, LockTicket, UnmatchedRequestTicket},
    rate_limit::{RateLimitContext, RateLimitTicket},
};
