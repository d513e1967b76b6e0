//! Worker that claims jobs when their lock is released and runs them through the application's
//! routes.

mod authorization_settings;
mod concurrency_and_rate_settings;
mod defer_worker;
mod lease_drain_backoff_settings;
mod snapshot_restore_settings;
mod stored_response_settings;
#[cfg(feature = "webhook")]
mod webhook_settings;
mod worker_settings;

use std::time::Duration;

pub use self::defer_worker::DeferWorker;
pub(super) use self::worker_settings::WorkerSettings;

/// Shortest lease and shortest `max_run_time`. Below it, a slow moment of the store looks like a
/// crash.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// Shortest retention of an ended job.
///
/// An enqueue with a lost reply is sent again, possibly after the job has ended. Only the retained
/// job shows that the request must not be stored and run a second time.
pub(super) const MIN_RETENTION: Duration = Duration::from_secs(60);
