//! Calls that are sent alone, by their callers.

use std::iter;

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    BatchFault, BatchTransport, BatcherInner, CallOutcome, RETRY_PAUSE,
    batch_slot::{BatchSlot, pair_replies},
    in_doubt_error,
};
use crate::error::{Error, ErrorKind};

/// Progress of a call that is sent alone.
struct SingleCallProgress<P> {
    attempts: u32,
    connection: Option<P>,
}

impl<F: BatchTransport> BatchSlot<F> {
    /// Sends the call in the caller's own future.
    pub(super) async fn send_single(self, step: F::Command, until: Instant) -> CallOutcome<F> {
        let (flights, name) = (&self.inner.transport, self.inner.script_name);
        let mut lone = SingleCallProgress { attempts: 0, connection: None };
        match timeout_at(until, self.inner.try_send_single(&step, &mut lone)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if let Some(path) = &lone.connection {
                    flights.handle_timeout(path);
                }
                let kind =
                    if lone.attempts == 0 { ErrorKind::Unavailable } else { ErrorKind::Timeout };
                Err(Error::new(kind, name))
            }
        }
    }
}

impl<F: BatchTransport> BatcherInner<F> {
    async fn try_send_single(
        &self,
        step: &F::Command,
        lone: &mut SingleCallProgress<F::BatchConnection>,
    ) -> CallOutcome<F> {
        let (flights, mut by_text) = (&self.transport, false);
        loop {
            let failed = |sent, error| Err(in_doubt_error(self.script_name, sent, error));
            let path = match flights.connection().await {
                Ok(path) => lone.connection.insert(path),
                Err(error) => return failed(lone.attempts, error),
            };
            let load = flights.encode(iter::once(step), by_text);
            lone.attempts += 1;
            let fault = match flights.send(path, &load).await {
                Ok(replies) => {
                    let (mut replies, sent) = (replies.into_iter(), lone.attempts);
                    let (first, second) = (replies.next(), replies.next());
                    return pair_replies::<F>(step, first, second, sent, self.script_name);
                }
                Err(fault) => fault,
            };
            lone.connection = None;
            by_text = matches!(fault, BatchFault::NoScript);
            if !matches!(fault, BatchFault::ConnectionLost) {
                lone.attempts -= 1;
            }
            match fault {
                BatchFault::Failed(error) => return failed(lone.attempts, error),
                BatchFault::ConnectionLost if !F::REPEATABLE => {
                    return Err(Error::new(ErrorKind::Timeout, self.script_name));
                }
                BatchFault::NotExecuted => sleep(RETRY_PAUSE).await,
                BatchFault::ConnectionLost if lone.attempts > 1 => sleep(RETRY_PAUSE).await,
                BatchFault::NoScript | BatchFault::ConnectionLost => {}
            }
        }
    }
}
