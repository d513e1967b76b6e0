//! Transport of lock commands: batches of `LOCK_BATCH` on one lane.

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    lock_command_encoding::{self, LockCommand},
    script_sources::LOCK_BATCH,
};
use crate::error::{Error, ErrorKind};
use crate::store::key_names::KeyNames;

/// Transport of one lane.
pub(super) struct LockTransport {
    pub(super) lanes: Arc<ConnectionLanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

/// Server's reply to one command.
#[derive(Debug)]
pub(super) enum RawLockReply {
    /// Text, the usual case; often a slice of one text for the whole batch.
    Text(Bytes),
    Value(Value),
}

impl From<Value> for RawLockReply {
    fn from(value: Value) -> Self {
        match value {
            Value::BulkString(text) => Self::Text(text.into()),
            value => Self::Value(value),
        }
    }
}

impl BatchTransport for LockTransport {
    type Command = LockCommand;
    type Reply = RawLockReply;
    type BatchConnection = TrackedConnection;
    type Payload = Cmd;

    const PIPELINE_THRESHOLD: usize = batcher::MAX_BATCH_WEIGHT / 2;

    fn weight(command: &LockCommand) -> usize {
        command.step_count()
    }

    fn reply_count(command: &LockCommand) -> usize {
        command.step_count()
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        commands: impl Iterator<Item = &'a LockCommand> + Clone,
        by_text: bool,
    ) -> Cmd {
        lock_command_encoding::build_command(&self.keys, commands, by_text)
    }

    async fn send(
        &self,
        connection: &mut TrackedConnection,
        payload: &Cmd,
    ) -> Result<Vec<RawLockReply>, batcher::BatchFault> {
        let reply = connection.connection.send_packed_command(payload).await;
        match classify_reply(connection, reply) {
            Ok(Value::Array(replies)) => Ok(replies.into_iter().map(RawLockReply::from).collect()),
            // The fast path of the script has executed all commands.
            Ok(Value::BulkString(text)) => Ok(split_replies(&Bytes::from(text))),
            Ok(_) => {
                Err(batcher::BatchFault::Failed(Error::new(ErrorKind::Protocol, LOCK_BATCH.name)))
            }
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(LOCK_BATCH.name, error)))
            }
        }
    }

    fn handle_timeout(&self, connection: &TrackedConnection) {
        connection.record_timeout();
    }
}

fn split_replies(text: &Bytes) -> Vec<RawLockReply> {
    let reply_count = 1 + text.iter().filter(|b| **b == b',').count();
    let mut replies = Vec::with_capacity(reply_count);
    if reply_count == 1 {
        replies.push(RawLockReply::Text(text.clone()));
        return replies;
    }
    replies.extend(text.split(|b| *b == b',').map(|part| RawLockReply::Text(text.slice_ref(part))));
    replies
}
