//! Deferral: a request that meets a busy resource is kept, and runs later, once, in order.
//!
//! What happens to a request behind a `DeferLayer` that has a `LockLayer` inside: if the lock is free it
//! runs as if the layer were not there, its body never read. If the lock is busy, the request is read
//! whole, stored behind that lock, and answered with 202 and the `Location` of a status resource. When
//! the lock comes free, a [`DeferWorker`] is woken, takes it, and sends the stored request through
//! the application's own routes. What can't be deferred gets the plain busy answer; where nobody knows
//! whether it was stored, 503 with the `Location`; a reused `Idempotency-Key` 422. A 202 means stored.
//!
//! Each accepted request ends in exactly one of `done`, `dead`, `cancelled` and `expired`. The jobs of
//! a resource start in the order they were accepted. Success is any answer but 401, 403, 408, 425, 429
//! and 5xx. PUT and DELETE are tried again with backoff, and run again after a crash; POST, PATCH and all
//! others run once, unless the layer is set to `retry_unsafe`: a run that failed or whose worker died ends
//! among the dead letters, since it may have done its work.
//!
//! The first pages of `lockgate-axum` and `lockgate-actix-web` show a service with all of it: layers, worker, status
//! resource, and an end in order.

mod claim_and_settle;
mod envelope;
mod execute_run;
mod gate;
mod job_backoff;
mod job_chain;
mod job_dispatcher;
#[cfg(any(test, feature = "test-kit"))]
mod job_stepper;
mod jobs;
mod missing_worker_warning;
mod prefer_header;
mod ready_queue;
mod replayer;
mod rfc3339;
mod run_authorization;
mod run_guard;
mod run_slots;
mod settlement_rules;
mod shared_run_limits;
mod snapshot;
mod status;
mod stored_headers;
#[cfg(test)]
mod tests;
pub mod webhook;
mod webhook_receivers;
mod worker;

#[cfg(any(test, feature = "test-kit"))]
pub use self::job_stepper::JobRunReport;
#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::job_stepper::JobStepper;
#[cfg(feature = "webhook")]
pub use self::webhook::Webhooks;
pub use self::{
    gate::{DeferCandidate, DeferGate, DeferTicket},
    jobs::{
        DeferStats, DeferredJobs, JobCursor, JobHead, JobInfo, JobPage, JobRequest, JobRun,
        ParseCursorError, RetainedRequest,
    },
    replayer::{ReplayBody, ReplayOutcome, ReplayResponse, Replayer, is_event_stream},
    run_authorization::{PendingRun, RunAuthorization},
    snapshot::ExtensionSnapshot,
    status::{StatusEvents, StatusGate, StatusReply, StatusRequest},
    worker::DeferWorker,
};
