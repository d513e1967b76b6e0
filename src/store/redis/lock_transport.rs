//! Transport of lock commands: batches of `LOCK_BATCH` on one lane.

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    lock_command_encoding::{self, LockCommand},
    scripts::LOCK_BATCH,
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
pub(super) enum RawReply {
    /// Text, the usual case; often a slice of one text for the whole batch.
    Text(Bytes),
    Value(Value),
}

impl From<Value> for RawReply {
    fn from(value: Value) -> Self {
        match value {
            Value::BulkString(text) => Self::Text(text.into()),
            value => Self::Value(value),
        }
    }
}

impl BatchTransport for LockTransport {
    type Command = LockCommand;
    type Reply = RawReply;
    type BatchConnection = TrackedConnection;
    type Payload = Cmd;

    const PIPELINE_THRESHOLD: usize = batcher::MAX_BATCH_WEIGHT / 2;

    fn weight(step: &LockCommand) -> usize {
        step.step_count()
    }

    fn reply_count(step: &LockCommand) -> usize {
        step.step_count()
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a LockCommand> + Clone,
        by_text: bool,
    ) -> Cmd {
        lock_command_encoding::build_command(&self.keys, steps, by_text)
    }

    async fn send(
        &self,
        path: &mut TrackedConnection,
        load: &Cmd,
    ) -> Result<Vec<RawReply>, batcher::BatchFault> {
        let answer = path.connection.send_packed_command(load).await;
        match classify_reply(path, answer) {
            Ok(Value::Array(replies)) => Ok(replies.into_iter().map(RawReply::from).collect()),
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

    fn handle_timeout(&self, path: &TrackedConnection) {
        path.record_timeout();
    }
}

fn split_replies(text: &Bytes) -> Vec<RawReply> {
    let steps = 1 + text.iter().filter(|b| **b == b',').count();
    let mut said = Vec::with_capacity(steps);
    if steps == 1 {
        said.push(RawReply::Text(text.clone()));
        return said;
    }
    said.extend(text.split(|b| *b == b',').map(|words| RawReply::Text(text.slice_ref(words))));
    said
}
