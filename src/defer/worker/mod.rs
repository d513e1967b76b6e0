//! Worker that claims jobs when their lock is released and runs them through the application's
//! routes.

mod authorization_settings;
mod concurrency_and_rate_settings;
mod defer_worker;
mod lease_drain_backoff_settings;
mod snapshot_restore_settings;
mod stored_response_settings;
mod trace_settings;
#[cfg(feature = "webhook")]
mod webhook_settings;
mod worker_settings;

pub use self::defer_worker::DeferWorker;
pub(super) use self::worker_settings::{MIN_RETENTION, WorkerSettings};
