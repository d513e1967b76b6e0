//! Deferral: a request that meets a busy lock is stored and runs later, once, in order.
//!
//! A [`DeferLayer`] wraps a `LockLayer`. A request that arrives while the lock is free runs as if
//! the `DeferLayer` were not there; its body is never read. A request that meets a busy lock is
//! read completely, stored behind that lock, and answered with 202 and the `Location` of a status
//! resource. When the lock is released, a [`DeferWorker`] is woken, claims it, and replays the
//! stored request through the application's own routes.
//!
//! Other answers of the layer:
//!
//! - The lock's busy response, if the request can't be deferred.
//! - 503 with the `Location`, if it is unknown whether the request was stored.
//! - 422, if an `Idempotency-Key` is reused for another request.
//!
//! A 202 means stored. Each accepted request ends in exactly one of `done`, `dead`, `cancelled` and
//! `expired`. The jobs of a resource start in the order in which they were accepted. Success is any
//! response but 401, 403, 408, 425, 429 and 5xx.
//!
//! PUT and DELETE are retried with backoff, and run again after a crash. POST, PATCH and all other
//! methods run once, unless the layer sets `retry_non_idempotent`: after a failed run or a dead
//! worker such a job becomes a dead letter, since it may have done its work.
//!
//! The front pages of `lockgate-axum` and `lockgate-actix-web` show a complete service: layers,
//! worker, status resource, and an orderly shutdown.

mod abort_run;
mod cancel_run;
mod claim_and_settle;
mod count_run;
mod end_without_run;
mod envelope;
mod execute_run;
mod extension_snapshot;
mod gate;
mod idempotency_key;
mod job_backoff;
mod job_chain;
mod job_dispatcher;
#[cfg(any(test, feature = "test-kit"))]
mod job_stepper;
mod jobs;
mod lost_holder_warning;
mod missing_worker_warning;
mod next_step;
mod prefer_header;
mod ready_lock_forwarding;
mod ready_queue;
mod replayer;
mod rfc3339;
mod run_authorization;
mod run_label;
mod run_slots;
mod run_span;
mod run_streak;
mod settlement_rules;
mod shared_run_limits;
mod status;
mod stored_request_headers;
mod stored_response_headers;
#[cfg(test)]
pub(crate) mod tests;
pub mod webhook;
mod webhook_receivers;
mod wiring_registry;
mod worker;

#[cfg(any(test, feature = "test-kit"))]
pub use self::job_stepper::JobRunReport;
#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::job_stepper::JobStepper;
#[cfg(feature = "webhook")]
pub use self::webhook::Webhooks;
pub use self::{
    extension_snapshot::{ExtensionSnapshot, RequestUser},
    gate::{DeferCandidate, DeferLayer, DeferTicket},
    jobs::{
        DeferStats, DeferredJobs, JobCursor, JobFilter, JobGroup, JobHead, JobInfo, JobPage,
        JobRequest, JobRun, JobSearchPage, ParseCursorError, RetainedRequest,
    },
    replayer::{ReplayBody, ReplayOutcome, ReplayResponse, Replayer, is_event_stream},
    run_authorization::{PendingRun, RunAuthorization},
    status::{StatusEvents, StatusReply, StatusRequest, StatusResource},
    worker::DeferWorker,
};
#[cfg(feature = "serve")]
pub(crate) use self::{status::find_dead_status_paths, wiring_registry::warn_unrestricted_mount};
