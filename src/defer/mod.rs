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

mod authorize;
mod backoff;
pub mod callback;
mod claim;
mod cut_off;
mod envelope;
mod gate;
mod headers;
mod hosts;
mod jobs;
mod judge;
#[cfg(any(test, feature = "test-kit"))]
mod kit;
mod limits;
mod prefer;
mod rounds;
mod run;
mod slots;
mod snapshot;
mod stamp;
mod status;
#[cfg(test)]
mod tests;
mod unwatched;
mod verdict;
mod visit;
mod waiting;
mod worker;

#[cfg(feature = "callback")]
pub use self::callback::Callbacks;
#[cfg(any(test, feature = "test-kit"))]
pub use self::kit::RanJob;
#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::kit::Stepper;
pub use self::{
    authorize::{Authorization, PendingRun},
    gate::{DeferGate, DeferParked, DeferTicket},
    jobs::{
        DeferStats, DeferredJobs, JobCursor, JobHead, JobInfo, JobPage, JobRequest, JobRun,
        KeptRequest, NoCursor,
    },
    run::{Answer, Kept, Ran, Replayer, is_stream},
    snapshot::Snapshot,
    status::{StatusAnswer, StatusEvents, StatusGate, StatusRequest},
    worker::DeferWorker,
};
