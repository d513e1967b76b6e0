//! Transport of claims and settlements: batches of `RUN_BATCH` on one lane.
//!
//! The undo of a claim goes over the same lane, so it never overtakes the claim (see [`batcher`]).

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, RedisWrite as _, Value};

use super::{
    batcher::{self, BatchTransport, MAX_BATCH_WEIGHT},
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    lock_command_encoding::{write_concatenated, write_number, write_texts},
    scripts::RUN_BATCH,
};
use crate::store::key_names::KeyNames;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::backend::{ClaimCommand, JobId, LockToken, NextClaim, SettleCommand, Settlement},
};

/// Approximate bytes and arguments of one command, without its response.
const SIZE_HINT: (usize, usize) = (320, 11);

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
        let mut digits = itoa::Buffer::new();
        match self {
            Self::Claim(ClaimCommand { id, token: me, lease, retention, .. }) => {
                write_texts(out, ["c", id.as_str(), me.as_str()]);
                [lease, retention]
                    .into_iter()
                    .for_each(|time| write_number(out, ceil_millis(*time)));
            }
            Self::Settle(SettleCommand {
                id,
                token: me,
                settlement: verdict,
                next_claim: next,
                ..
            }) => {
                let words;
                let (verb, time, reason) = match verdict {
                    Settlement::Done { status, retention, .. } => {
                        ("done", retention, digits.format(*status))
                    }
                    Settlement::Dead { reason, retention } => ("dead", retention, *reason),
                    Settlement::Retry { delay, reason } => ("retry", delay, *reason),
                    Settlement::Postpone { delay, reason } => ("back", delay, *reason),
                    Settlement::ReturnToQueue { delay, reason } => ("hand", delay, *reason),
                    Settlement::WebhookSettled { ended_us, response, reason, retention } => {
                        let status = response.as_ref().map_or(0, |(_, status)| *status);
                        words = format!("{ended_us} {status} {reason}");
                        ("told", retention, &*words)
                    }
                };
                write_texts(out, ["s", id.as_str(), me.as_str(), verb]);
                write_number(out, ceil_millis(*time));
                write_texts(out, [reason]);
                out.write_arg(self.response().map_or(&[], |response| response));
                write_next_run(next.as_ref(), out);
            }
            Self::UndoClaim { id, token: me, .. } => {
                write_texts(
                    out,
                    ["s", id.as_ref().map_or("-", JobId::as_str), me.as_str(), "undo"],
                );
                write_number(out, 1);
                write_texts(out, ["not started", ""]);
                write_next_run(None, out);
            }
        }
    }
}

fn write_next_run(next: Option<&NextClaim>, out: &mut Cmd) {
    match next {
        Some(NextClaim { token: me, lease, retention }) => {
            write_texts(out, [me.as_str()]);
            [lease, retention].into_iter().for_each(|time| write_number(out, ceil_millis(*time)));
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

    fn weight(step: &ClaimSettleCommand) -> usize {
        (1 + step.payload_len() / RESPONSE_BYTES_PER_WEIGHT).min(MAX_BATCH_WEIGHT)
    }

    fn reply_count(_: &ClaimSettleCommand) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a ClaimSettleCommand> + Clone,
        by_text: bool,
    ) -> Cmd {
        build_command(&self.keys, steps, by_text)
    }

    async fn send(
        &self,
        path: &mut TrackedConnection,
        load: &Cmd,
    ) -> Result<Vec<Value>, batcher::BatchFault> {
        let answer = path.connection.send_packed_command(load).await;
        match classify_reply(path, answer) {
            Ok(Value::Array(replies)) => Ok(replies),
            Ok(_) => {
                Err(batcher::BatchFault::Failed(Error::new(ErrorKind::Protocol, RUN_BATCH.name)))
            }
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(RUN_BATCH.name, error)))
            }
        }
    }

    fn handle_timeout(&self, path: &TrackedConnection) {
        path.record_timeout();
    }
}

/// Builds one call of these commands, in this order. On a single server they may be of any shards,
/// in a cluster they are of one.
fn build_command<'a>(
    keys: &KeyNames,
    steps: impl Iterator<Item = &'a ClaimSettleCommand> + Clone,
    by_text: bool,
) -> Cmd {
    let sized = steps.clone().fold((0, 0), |(n, bytes), step| (n + 1, bytes + step.payload_len()));
    let (count, bytes): (usize, usize) = sized;
    let script = if by_text { ["EVAL", RUN_BATCH.source] } else { ["EVALSHA", RUN_BATCH.sha1()] };
    let room = script[1].len() + 64 + SIZE_HINT.0 * count + bytes;
    let mut out = Cmd::with_capacity(3 + SIZE_HINT.1 * count, room);
    write_texts(&mut out, script);
    let never = steps.clone().next().and_then(|step| keys.slot_guard_key(step.key().shard()));
    write_number(&mut out, (count + never.iter().len()) as u64);
    steps.clone().for_each(|step| write_concatenated(&mut out, &keys.holders_parts(step.key())));
    never.iter().for_each(|parts| write_concatenated(&mut out, parts));
    steps.for_each(|step| step.write_args(&mut out));
    out
}
