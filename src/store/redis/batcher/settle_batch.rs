//! Settlement of a sent batch: its calls get their replies, fail, or are sent again.

use tokio::time::{Instant, sleep};

use super::{
    BatchFault, BatchTransport, CallOutcome, CallReply, RETRY_PAUSE, batch_sender::BatchSender,
    call_batcher::has_time_for_reply, lane_queue::QueuedCall,
};
use crate::error::{Error, ErrorKind};

impl<F: BatchTransport> BatchSender<F> {
    /// Completes the calls of the batch with their replies, in order.
    pub(super) fn deliver_replies(&mut self, replies: Vec<F::Reply>) {
        let mut replies = replies.into_iter();
        for QueuedCall { command, cell, attempts, .. } in self.batch.drain(..) {
            let first = replies.next();
            let second = if F::reply_count(&command) > 1 { replies.next() } else { None };
            let outcome =
                pair_replies::<F>(&command, first, second, attempts, self.inner.script_name);
            cell.complete(outcome);
        }
    }

    /// Handles the fault of a sent batch: fails its calls, or leaves them to be sent again. Returns
    /// true if the server needs the text of the script.
    pub(super) async fn handle_fault(&mut self, fault: BatchFault) -> bool {
        match fault {
            BatchFault::NoScript => {
                self.batch.iter_mut().for_each(QueuedCall::undo_attempt);
                return true;
            }
            BatchFault::NotExecuted => {
                self.batch.iter_mut().for_each(QueuedCall::undo_attempt);
                sleep(RETRY_PAUSE).await;
                self.fail_refused_before_deadline();
            }
            BatchFault::ConnectionLost if !F::REPEATABLE => {
                self.fail_all(&Error::new(ErrorKind::Timeout, self.inner.script_name));
            }
            BatchFault::ConnectionLost => {
                if self.batch.iter().any(|call| call.attempts > 1) {
                    sleep(RETRY_PAUSE).await;
                }
            }
            BatchFault::Failed(error) => self.fail_all(&error),
        }
        false
    }

    /// Fails the refused calls whose deadline is too near for another copy.
    fn fail_refused_before_deadline(&mut self) {
        let (now, script_name) = (Instant::now(), self.inner.script_name);
        self.batch.retain(|call| {
            let may_resend = has_time_for_reply(call.deadline, now);
            if !may_resend {
                call.fail(script_name, Error::new(ErrorKind::Unavailable, script_name));
            }
            may_resend
        });
    }

    /// Fails all calls of the batch.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for call in self.batch.drain(..) {
            call.fail_last_attempt(self.inner.script_name, error);
        }
    }
}

/// Returns the outcome of a call: as many replies as its command has, or a protocol error.
pub(super) fn pair_replies<F: BatchTransport>(
    command: &F::Command,
    first: Option<F::Reply>,
    second: Option<F::Reply>,
    attempts: u32,
    script_name: &'static str,
) -> CallOutcome<F> {
    match (first, second) {
        (Some(first), second) if second.is_some() == (F::reply_count(command) > 1) => {
            Ok(CallReply { first, second, attempts })
        }
        _ => Err(Error::new(ErrorKind::Protocol, script_name)),
    }
}
