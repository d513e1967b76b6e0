//! [`CancelRequest`]: asks the worker of a run to end it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::admin_error::AdminError;
use crate::store::Store;

/// Longest wait for the end of a run: twice the grace of its handler.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Pause after the first message; it doubles up to `MAX_PAUSE`. A handler that waits for a
/// cancellation stops within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Longest pause between two messages, of which any may be lost.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Request to end a run, which is repeated until it has ended.
pub(super) struct CancelRequest<'a> {
    store: &'a Store,
    /// Id of the job or task.
    id: &'a str,
    /// `None` until the first message.
    deadline: Option<Instant>,
    pause: Duration,
}

impl<'a> CancelRequest<'a> {
    pub(super) fn new(store: &'a Store, id: &'a str) -> Self {
        Self { store, id, deadline: None, pause: FIRST_PAUSE }
    }

    /// Returns true if the run may have been told.
    pub(super) fn was_sent(&self) -> bool {
        self.deadline.is_some()
    }

    /// Sends the message once, and pauses.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] when the run has not ended within `MAX_WAIT`; or the store's.
    pub(super) async fn send(&mut self) -> Result<(), AdminError> {
        let now = Instant::now();
        if *self.deadline.get_or_insert(now + MAX_WAIT) <= now {
            return Err(AdminError::NotPossible(
                "its worker has not ended the run within 10 s; it may still end as cancelled"
                    .to_owned(),
            ));
        }
        self.store.backend().cancel_run(self.id.to_owned()).await?;
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }
}
