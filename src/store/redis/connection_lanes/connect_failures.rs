//! `ConnectFailures`: last failure to connect of a lane, repeated to its callers for a while.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    error::Error,
    store::redis::{jitter::with_jitter, target::ConnectError},
};

/// Time for which a configuration error is repeated without another attempt: each attempt is a
/// login, which the server may count. Jitter is added.
const CONFIG_ERROR_TTL: Duration = Duration::from_millis(500);

/// Failures of connection attempts, and a notification of the callers that wait.
#[derive(Default)]
pub(super) struct ConnectFailures {
    /// Last failure; for a configuration error, also the time of the next attempt.
    last: Mutex<Option<(ConnectError, Option<Instant>)>>,
    pub(super) failure_notify: Notify,
}

impl ConnectFailures {
    pub(super) fn record(&self, failure: ConnectError) -> Error {
        let is_config_error = matches!(failure, ConnectError::Config(_));
        let retry_at = is_config_error.then(|| Instant::now() + with_jitter(CONFIG_ERROR_TTL));
        *self.last.lock() = Some((failure.clone(), retry_at));
        self.failure_notify.notify_waiters();
        failure.into_error()
    }

    /// Forgets the failure after a successful attempt.
    pub(super) fn clear(&self) {
        *self.last.lock() = None;
    }

    pub(super) fn last_error(&self) -> Error {
        self.last
            .lock()
            .clone()
            .map_or(ConnectError::Unavailable, |(failure, _)| failure)
            .into_error()
    }

    /// Returns the last failure if the server answered and refused the connection.
    pub(super) fn last_refusal(&self) -> Option<Error> {
        let last = self.last.lock().clone();
        last.filter(|(failure, _)| matches!(failure, ConnectError::Refused(_)))
            .map(|(failure, _)| failure.into_error())
    }

    /// Returns a configuration error that is younger than `CONFIG_ERROR_TTL`. Another attempt would
    /// most likely fail too, since such an error is fixed by hand.
    pub(super) fn config_error(&self) -> Option<Error> {
        let last = self.last.lock().clone();
        let (failure, _) =
            last.filter(|(_, retry_at)| retry_at.is_some_and(|at| Instant::now() < at))?;
        Some(failure.into_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[tokio::test(start_paused = true)]
    async fn config_error_is_cached_briefly_and_outage_is_not() {
        let failures = ConnectFailures::default();
        assert!(failures.config_error().is_none());
        failures.record(ConnectError::Config("another password".to_owned()));
        assert!(failures.config_error().is_some_and(|error| error.kind() == ErrorKind::Config));
        tokio::time::advance(CONFIG_ERROR_TTL * 5 / 4).await;
        assert!(failures.config_error().is_none(), "it may be mended");
        assert_eq!(failures.last_error().kind(), ErrorKind::Config, "if it is not");
        failures.record(ConnectError::Config("another password".to_owned()));
        failures.record(ConnectError::Unavailable);
        assert!(failures.config_error().is_none());
        failures.record(ConnectError::Config("another password".to_owned()));
        failures.clear();
        assert!(failures.config_error().is_none());
    }
}
