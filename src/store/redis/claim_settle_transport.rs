//! Transport of claims and settlements of jobs: batches of `CLAIM_SETTLE_BATCH` on one lane.
//!
//! The undo of a claim goes over the same lane, so it never overtakes the claim (see [`batcher`]).

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, RedisWrite as _, Value};

use super::{
    batcher::{self, BatchTransport, MAX_BATCH_WEIGHT},
    call_fault::{CallFault, classify_reply},
    command_arg_writers::{write_concatenated, write_number, write_texts},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    script_sources::CLAIM_SETTLE_BATCH,
};
use crate::store::key_names::KeyNames;
use crate::{
    durations::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::backend::{ClaimCommand, JobId, LockToken, NextClaim, SettleCommand, Settlement},
};

/// Approximate number of bytes of one command, without its response.
const BYTES_PER_COMMAND: usize = 320;

/// Approximate number of arguments of one command, without its response.
const ARGS_PER_COMMAND: usize = 11;

/// Response bytes that weigh as much as another command. A batch is about a megabyte at most, or
/// one response.
const RESPONSE_BYTES_PER_WEIGHT: usize = 32 * 1024;

/// Command about a run.
pub(super) enum ClaimSettleCommand {
    Claim(ClaimCommand),
    Settle(SettleCommand),
    /// Undoes the claim under this token, because no caller is left to run the job. `id` is `None`
    /// if the claimed job is not known.
    UndoClaim {
        key: Key,
        id: Option<JobId>,
        token: LockToken,
    },
}

impl ClaimSettleCommand {
    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Claim(ClaimCommand { key, .. })
            | Self::Settle(SettleCommand { key, .. })
            | Self::UndoClaim { key, .. } => key,
        }
    }

    /// Returns true if the command ends a run and claims no further job of the lock.
    pub(super) fn frees_run_slot(&self) -> bool {
        matches!(self, Self::Settle(SettleCommand { next_claim: None, .. }))
    }

    fn response(&self) -> Option<&Bytes> {
        match self {
            Self::Settle(SettleCommand {
                settlement: Settlement::Done { response, .. }, ..
            }) => Some(response),
            Self::Settle(SettleCommand {
                settlement: Settlement::WebhookSettled { response, .. },
                ..
            }) => response.as_ref().map(|(response, _)| response),
            _ => None,
        }
    }

    fn payload_len(&self) -> usize {
        self.response().map_or(0, Bytes::len)
    }

    fn write_args(&self, out: &mut Cmd) {
        match self {
            Self::Claim(ClaimCommand { id, token, lease, retention, .. }) => {
                write_texts(out, ["c", id.as_str(), token.as_str()]);
                [lease, retention]
                    .into_iter()
                    .for_each(|duration| write_number(out, ceil_millis(*duration)));
            }
            Self::Settle(command) => write_settlement(command, self.response(), out),
            Self::UndoClaim { id, token, .. } => {
                write_texts(
                    out,
                    ["s", id.as_ref().map_or("-", JobId::as_str), token.as_str(), "undo"],
                );
                write_number(out, 1);
                write_texts(out, ["not started", ""]);
                write_next_claim(None, out);
            }
        }
    }
}

fn write_settlement(command: &SettleCommand, response: Option<&Bytes>, out: &mut Cmd) {
    let SettleCommand { id, token, settlement, next_claim, .. } = command;
    let mut digits = itoa::Buffer::new();
    let webhook_result;
    let (verb, duration, reason) = match settlement {
        Settlement::Done { status, retention, .. } => ("done", retention, digits.format(*status)),
        Settlement::Dead { reason, retention } => ("dead", retention, *reason),
        Settlement::Cancelled { retention } => ("cancelled", retention, "cancelled"),
        Settlement::Retry { delay, reason } => ("retry", delay, *reason),
        Settlement::Postpone { delay, reason } => ("postpone", delay, *reason),
        Settlement::ReturnToQueue { delay, reason } => ("return_to_queue", delay, *reason),
        Settlement::WebhookSettled { ended_us, response, reason, retention } => {
            let status = response.as_ref().map_or(0, |(_, status)| *status);
            webhook_result = format!("{ended_us} {status} {reason}");
            ("webhook_settled", retention, &*webhook_result)
        }
    };
    write_texts(out, ["s", id.as_str(), token.as_str(), verb]);
    write_number(out, ceil_millis(*duration));
    write_texts(out, [reason]);
    out.write_arg(response.map_or(&[], |response| response));
    write_next_claim(next_claim.as_ref(), out);
}

fn write_next_claim(next_claim: Option<&NextClaim>, out: &mut Cmd) {
    match next_claim {
        Some(NextClaim { token, lease, retention }) => {
            write_texts(out, [token.as_str()]);
            [lease, retention]
                .into_iter()
                .for_each(|duration| write_number(out, ceil_millis(*duration)));
        }
        None => write_texts(out, ["", "0", "0"]),
    }
}

/// Transport of one lane.
pub(super) struct ClaimSettleTransport {
    pub(super) lanes: Arc<ConnectionLanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

impl BatchTransport for ClaimSettleTransport {
    type Command = ClaimSettleCommand;
    type Reply = Value;
    type BatchConnection = TrackedConnection;
    type Payload = Cmd;

    /// While the server executes one batch, the runs of the batch before end in this process. A
    /// second batch leaves with half as many commands as a worker has run slots by default. With a
    /// higher threshold, the server and the worker would take turns waiting for each other.
    const PIPELINE_THRESHOLD: usize = 8;

    fn weight(command: &ClaimSettleCommand) -> usize {
        (1 + command.payload_len() / RESPONSE_BYTES_PER_WEIGHT).min(MAX_BATCH_WEIGHT)
    }

    fn reply_count(_: &ClaimSettleCommand) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        commands: impl Iterator<Item = &'a ClaimSettleCommand> + Clone,
        by_text: bool,
    ) -> Cmd {
        build_command(&self.keys, commands, by_text)
    }

    async fn send(
        &self,
        connection: &mut TrackedConnection,
        payload: &Cmd,
    ) -> Result<Vec<Value>, batcher::BatchFault> {
        let reply = connection.connection.send_packed_command(payload).await;
        match classify_reply(connection, reply) {
            Ok(Value::Array(replies)) => Ok(replies),
            Ok(_) => Err(batcher::BatchFault::Failed(Error::new(
                ErrorKind::Protocol,
                CLAIM_SETTLE_BATCH.name,
            ))),
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(CLAIM_SETTLE_BATCH.name, error)))
            }
        }
    }

    fn handle_timeout(&self, connection: &TrackedConnection) {
        connection.record_timeout();
    }
}

/// Builds one call of these commands, in this order. On a single server they may be of any shards,
/// in a cluster they are of one.
fn build_command<'a>(
    keys: &KeyNames,
    commands: impl Iterator<Item = &'a ClaimSettleCommand> + Clone,
    by_text: bool,
) -> Cmd {
    let (count, bytes): (usize, usize) = commands
        .clone()
        .fold((0, 0), |(count, bytes), command| (count + 1, bytes + command.payload_len()));
    let script = if by_text {
        ["EVAL", CLAIM_SETTLE_BATCH.source]
    } else {
        ["EVALSHA", CLAIM_SETTLE_BATCH.sha1()]
    };
    let byte_capacity = script[1].len() + 64 + BYTES_PER_COMMAND * count + bytes;
    let mut out = Cmd::with_capacity(3 + ARGS_PER_COMMAND * count, byte_capacity);
    write_texts(&mut out, script);
    let guard_key =
        commands.clone().next().and_then(|command| keys.slot_guard_key(command.key().shard()));
    write_number(&mut out, (count + guard_key.iter().len()) as u64);
    commands
        .clone()
        .for_each(|command| write_concatenated(&mut out, &keys.holders_parts(command.key())));
    guard_key.iter().for_each(|parts| write_concatenated(&mut out, parts));
    commands.for_each(|command| command.write_args(&mut out));
    out
}
