//! Single call: sent alone, in the future of its caller, and again after a repeatable fault.

use std::iter;

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    BatchFault, BatchTransport, BatcherInner, CallOutcome, RETRY_PAUSE, batch_sender::BatchSender,
    in_doubt_error, pause_after_refusal, settle_batch::pair_replies,
};
use crate::{
    error::{Error, ErrorKind},
    instruments::record_batch_size,
};

/// Progress of a call that is sent alone.
struct SingleCallProgress<P> {
    deadline: Instant,
    attempts: u32,
    connection: Option<P>,
}

impl<F: BatchTransport> BatchSender<F> {
    /// Sends the call in the caller's own future.
    pub(super) async fn send_single(
        self,
        command: F::Command,
        deadline: Instant,
    ) -> CallOutcome<F> {
        let (transport, script_name) = (&self.inner.transport, self.inner.script_name);
        let mut progress = SingleCallProgress { deadline, attempts: 0, connection: None };
        match timeout_at(deadline, self.inner.try_send_single(&command, &mut progress)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if let Some(connection) = &progress.connection {
                    transport.handle_timeout(connection);
                }
                let kind = if progress.attempts == 0 {
                    ErrorKind::Unavailable
                } else {
                    ErrorKind::Timeout
                };
                Err(Error::new(kind, script_name))
            }
        }
    }
}

impl<F: BatchTransport> BatcherInner<F> {
    async fn try_send_single(
        &self,
        command: &F::Command,
        progress: &mut SingleCallProgress<F::BatchConnection>,
    ) -> CallOutcome<F> {
        let (transport, mut by_text) = (&self.transport, false);
        loop {
            let failed = |attempts, error| Err(in_doubt_error(self.script_name, attempts, error));
            let connection = match transport.connection().await {
                Ok(connection) => progress.connection.insert(connection),
                Err(error) => return failed(progress.attempts, error),
            };
            let payload = transport.encode(iter::once(command), by_text);
            progress.attempts += 1;
            record_batch_size(self.script_name, 1);
            let fault = match transport.send(connection, &payload).await {
                Ok(replies) => {
                    let (mut replies, attempts) = (replies.into_iter(), progress.attempts);
                    let (first, second) = (replies.next(), replies.next());
                    return pair_replies::<F>(command, first, second, attempts, self.script_name);
                }
                Err(fault) => fault,
            };
            progress.connection = None;
            by_text = matches!(fault, BatchFault::NoScript);
            if !matches!(fault, BatchFault::ConnectionLost) {
                progress.attempts -= 1;
            }
            match fault {
                BatchFault::Failed(error) => return failed(progress.attempts, error),
                BatchFault::ConnectionLost if !F::REPEATABLE => {
                    return Err(Error::new(ErrorKind::Timeout, self.script_name));
                }
                BatchFault::NotExecuted => pause_after_refusal(progress.deadline).await,
                BatchFault::ConnectionLost if progress.attempts > 1 => sleep(RETRY_PAUSE).await,
                BatchFault::NoScript | BatchFault::ConnectionLost => {}
            }
        }
    }
}
