//! `BatchTransport`: how one kind of batched call is encoded and sent, with its limits and faults.

use std::future::Future;

use crate::error::Error;

/// Largest weight of a batch of commands like those of `LOCK_BATCH`.
pub(in super::super) const MAX_BATCH_WEIGHT: usize = 32;

/// Encoding and sending of batches.
pub(in super::super) trait BatchTransport: Send + Sync + 'static {
    type Command: Send + Sync + 'static;
    type Reply: Send + 'static;
    /// Connection to the server.
    type BatchConnection: Send;
    /// Encoded batch.
    type Payload: Send;

    /// Largest weight of a batch, bounded as its script is.
    const MAX_WEIGHT: usize = MAX_BATCH_WEIGHT;
    /// Number of waiting calls that are sent although one batch is in flight: they are prepared
    /// while the server executes it.
    const PIPELINE_THRESHOLD: usize = Self::MAX_WEIGHT;
    /// Sends calls again that may have run. If false, their callers get a timeout.
    const REPEATABLE: bool = true;

    /// Returns the weight of a command in a batch, at least 1.
    fn weight(command: &Self::Command) -> usize;

    /// Returns the number of replies to a command: 1 or 2.
    fn reply_count(command: &Self::Command) -> usize;

    fn connection(&self) -> impl Future<Output = Result<Self::BatchConnection, Error>> + Send;

    /// Encodes a batch. `by_text` sends the text of the script instead of its hash.
    fn encode<'a>(
        &self,
        commands: impl Iterator<Item = &'a Self::Command> + Clone,
        by_text: bool,
    ) -> Self::Payload;

    /// Sends a batch. Payloads are put on the wire in the order of the first polls.
    fn send<'a>(
        &'a self,
        connection: &'a mut Self::BatchConnection,
        payload: &'a Self::Payload,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, BatchFault>> + Send + 'a;

    /// Handles the timeout of a batch on this connection.
    fn handle_timeout(&self, connection: &Self::BatchConnection);
}

/// Reason why a batch failed.
pub(in super::super) enum BatchFault {
    /// The server does not know the script, which has not run.
    NoScript,
    /// The server did not run it: it is no master, or is still loading.
    NotExecuted,
    /// The connection broke: it may have run.
    ConnectionLost,
    /// Holds the error for each call of the batch.
    Failed(Error),
}

/// Replies to a command, and the number of times that it was sent. With more than one, an earlier
/// copy may have run.
#[derive(Debug)]
pub(in super::super) struct CallReply<R> {
    pub(in super::super) first: R,
    pub(in super::super) second: Option<R>,
    pub(in super::super) attempts: u32,
}
