//! Transport of enqueues: batches of `ENQUEUE_JOBS` on one lane.
//!
//! A command is sent only if its caller still waits. It needs no undo: if its caller leaves later,
//! the request is stored and runs, as after a lost 202.

use std::sync::Arc;

use redis::{Cmd, RedisWrite as _, Value};

use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    command_arg_writers::{write_concatenated, write_number, write_texts, write_verb_and_numbers},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    script_sources::ENQUEUE_JOBS,
};
use crate::store::key_names::KeyNames;
use crate::{
    durations::ceil_millis,
    error::{Error, ErrorKind},
    store::backend::{EnqueueCommand, MergeMode, OnFailure, WebhookJobSpec},
};

/// Approximate number of bytes of one job, without its request.
const BYTES_PER_JOB: usize = 240;

/// Approximate number of arguments of one job, without its request.
const ARGS_PER_JOB: usize = 7;

/// Envelope bytes that weigh as much as another request. A batch is about a megabyte at most, or
/// one request.
const ENVELOPE_BYTES_PER_WEIGHT: usize = 64 * 1024;

/// Transport of one lane.
pub(super) struct EnqueueTransport {
    pub(super) lanes: Arc<ConnectionLanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

impl BatchTransport for EnqueueTransport {
    type Command = EnqueueCommand;
    type Reply = Value;
    type BatchConnection = TrackedConnection;
    type Payload = Cmd;

    const MAX_WEIGHT: usize = 16;

    fn weight(command: &EnqueueCommand) -> usize {
        (1 + command.envelope.len() / ENVELOPE_BYTES_PER_WEIGHT).min(Self::MAX_WEIGHT)
    }

    fn reply_count(_: &EnqueueCommand) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        commands: impl Iterator<Item = &'a EnqueueCommand> + Clone,
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
            Ok(_) => {
                Err(batcher::BatchFault::Failed(Error::new(ErrorKind::Protocol, ENQUEUE_JOBS.name)))
            }
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(ENQUEUE_JOBS.name, error)))
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
    commands: impl Iterator<Item = &'a EnqueueCommand> + Clone,
    by_text: bool,
) -> Cmd {
    let (count, bytes) = commands
        .clone()
        .fold((0, 0), |(count, bytes), command| (count + 1, bytes + command.envelope.len()));
    let script =
        if by_text { ["EVAL", ENQUEUE_JOBS.source] } else { ["EVALSHA", ENQUEUE_JOBS.sha1()] };
    let byte_capacity = script[1].len() + 64 + BYTES_PER_JOB * count + bytes;
    let mut out = Cmd::with_capacity(3 + ARGS_PER_JOB * count, byte_capacity);
    write_texts(&mut out, script);
    let guard_key =
        commands.clone().next().and_then(|command| keys.slot_guard_key(command.key.shard()));
    let key_count: usize = commands
        .clone()
        .map(|command| 1 + usize::from(idempotency_record_args(command).is_some()))
        .sum();
    write_number(&mut out, (key_count + guard_key.iter().len()) as u64);
    commands.clone().for_each(|command| write_keys(keys, command, &mut out));
    guard_key.iter().for_each(|parts| write_concatenated(&mut out, parts));
    commands.for_each(|command| write_args(command, &mut out));
    out
}

/// Arguments of the script about the idempotency record of a request.
struct IdempotencyRecordArgs<'a> {
    name: &'a str,
    fingerprint: &'a str,
    ttl_ms: u64,
}

/// Returns the idempotency record, if the request has a fingerprint.
fn idempotency_record_args(command: &EnqueueCommand) -> Option<IdempotencyRecordArgs<'_>> {
    let (record_name, fingerprint, retention) = command.idempotency_record.as_ref()?;
    (!fingerprint.is_empty()).then(|| IdempotencyRecordArgs {
        name: record_name,
        fingerprint,
        ttl_ms: ceil_millis(*retention),
    })
}

fn write_keys(keys: &KeyNames, command: &EnqueueCommand, out: &mut Cmd) {
    write_concatenated(out, &keys.holders_parts(&command.key));
    if let Some(record) = idempotency_record_args(command) {
        write_texts(out, [&keys.idempotency_record(&command.key, record.name)]);
    }
}

/// Returns the numbers of the policy, the idempotency record and the limits, as the script reads
/// them.
fn numbers_arg(command: &EnqueueCommand, record: Option<&IdempotencyRecordArgs<'_>>) -> [u64; 15] {
    let EnqueueCommand { policy, limits, .. } = command;
    [
        policy.retry_after_crash.into(),
        policy.max_attempts.into(),
        (policy.on_failure == OnFailure::Skip).into(),
        policy.needs_worker.into(),
        // For both, 0 means none; a deadline of zero is sent as one millisecond.
        if policy.delay.is_zero() { 0 } else { ceil_millis(policy.delay) },
        policy.deadline.map_or(0, ceil_millis),
        record.map_or(0, |record| record.ttl_ms),
        limits.resource_jobs,
        limits.resource_bytes,
        limits.shard_jobs,
        limits.shard_bytes,
        limits.owner_jobs,
        limits.owner_bytes,
        limits.ended_bytes,
        limits.owner_records,
    ]
}

fn write_args(command: &EnqueueCommand, out: &mut Cmd) {
    let EnqueueCommand { id, envelope, merge, owner, route, webhook, .. } = command;
    let record = idempotency_record_args(command);
    let merge_letter = |mode| if mode == MergeMode::Coalesce { "f" } else { "l" };
    let letters = [
        record.as_ref().map_or("", |_| "p"),
        if owner.is_empty() { "" } else { "o" },
        if route.is_empty() { "" } else { "r" },
        merge.as_ref().map_or("", |merge| merge_letter(merge.mode)),
        webhook.as_ref().map_or("", |_| "c"),
    ];
    write_texts(out, [id.as_str()]);
    out.write_arg(envelope);
    write_verb_and_numbers(out, &letters.concat(), numbers_arg(command, record.as_ref()));
    record.iter().for_each(|record| write_texts(out, [record.fingerprint]));
    for text in [owner, route].into_iter().filter(|text| !text.is_empty()) {
        write_texts(out, [text]);
    }
    merge.iter().for_each(|merge| write_texts(out, [&merge.group]));
    if let Some(WebhookJobSpec { id, key, envelope, max_attempts }) = webhook {
        let head = format!("{id} {max_attempts} {key}\n");
        out.write_arg(&[head.as_bytes(), envelope].concat());
    }
}
