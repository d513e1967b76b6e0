//! Transport of enqueues: batches of `ENQUEUE_BATCH` on one lane.
//!
//! A command is sent only if its caller still waits. It needs no undo: if its caller leaves later,
//! the request is stored and runs, as after a lost 202.

use std::sync::Arc;

use redis::{Cmd, RedisWrite as _, Value};

use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    lock_command_encoding::{
        write_concatenated, write_number, write_texts, write_verb_and_numbers,
    },
    scripts::ENQUEUE_BATCH,
};
use crate::store::key_names::KeyNames;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
    store::backend::{EnqueueCommand, MergeMode, OnFailure, WebhookJobSpec},
};

/// Approximate bytes and arguments of one job, without its request.
const SIZE_HINT: (usize, usize) = (240, 7);

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

    fn weight(step: &EnqueueCommand) -> usize {
        (1 + step.envelope.len() / ENVELOPE_BYTES_PER_WEIGHT).min(Self::MAX_WEIGHT)
    }

    fn reply_count(_: &EnqueueCommand) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a EnqueueCommand> + Clone,
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
            Ok(_) => Err(batcher::BatchFault::Failed(Error::new(
                ErrorKind::Protocol,
                ENQUEUE_BATCH.name,
            ))),
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(ENQUEUE_BATCH.name, error)))
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
    steps: impl Iterator<Item = &'a EnqueueCommand> + Clone,
    by_text: bool,
) -> Cmd {
    let sized = steps.clone().fold((0, 0), |(n, bytes), step| (n + 1, bytes + step.envelope.len()));
    let (count, bytes) = sized;
    let script =
        if by_text { ["EVAL", ENQUEUE_BATCH.source] } else { ["EVALSHA", ENQUEUE_BATCH.sha1()] };
    let room = script[1].len() + 64 + SIZE_HINT.0 * count + bytes;
    let mut out = Cmd::with_capacity(3 + SIZE_HINT.1 * count, room);
    write_texts(&mut out, script);
    let never = steps.clone().next().and_then(|step| keys.slot_guard_key(step.key.shard()));
    let declared: usize =
        steps.clone().map(|step| 1 + usize::from(fingerprint(step).is_some())).sum();
    write_number(&mut out, (declared + never.iter().len()) as u64);
    steps.clone().for_each(|step| write_keys(keys, step, &mut out));
    never.iter().for_each(|parts| write_concatenated(&mut out, parts));
    steps.for_each(|step| write_args(step, &mut out));
    out
}

/// Returns the record's name, the fingerprint and the record's TTL in ms, if the request has a
/// fingerprint.
fn fingerprint(step: &EnqueueCommand) -> Option<(&str, &str, u64)> {
    let (record, print, life) = step.idempotency_record.as_ref()?;
    (!print.is_empty()).then(|| (&**record, &**print, ceil_millis(*life)))
}

fn write_keys(keys: &KeyNames, step: &EnqueueCommand, out: &mut Cmd) {
    write_concatenated(out, &keys.holders_parts(&step.key));
    if let Some((record, ..)) = fingerprint(step) {
        write_texts(out, [&keys.idempotency_record(&step.key, record)]);
    }
}

fn write_args(step: &EnqueueCommand, out: &mut Cmd) {
    let EnqueueCommand { id, envelope, policy, merge, limits: caps, owner, webhook: call, .. } =
        step;
    let print = fingerprint(step);
    let numbers = [
        policy.retry_after_crash.into(),
        policy.max_attempts.into(),
        (policy.on_failure == OnFailure::Skip).into(),
        policy.needs_worker.into(),
        // For both, 0 means none; a deadline of zero is sent as one millisecond.
        if policy.delay.is_zero() { 0 } else { ceil_millis(policy.delay) },
        policy.deadline.map_or(0, ceil_millis),
        print.map_or(0, |(.., life)| life),
        caps.resource_jobs,
        caps.resource_bytes,
        caps.shard_jobs,
        caps.shard_bytes,
        caps.owner_jobs,
        caps.owner_bytes,
        caps.ended_bytes,
        caps.owner_records,
    ];
    let wins = |wins| if wins == MergeMode::Coalesce { "f" } else { "l" };
    let letters = [
        print.map_or("", |_| "p"),
        if owner.is_empty() { "" } else { "o" },
        merge.as_ref().map_or("", |merge| wins(merge.mode)),
        call.as_ref().map_or("", |_| "c"),
    ];
    write_texts(out, [id.as_str()]);
    out.write_arg(envelope);
    write_verb_and_numbers(out, &letters.concat(), numbers);
    print.iter().for_each(|(_, print, _)| write_texts(out, [print]));
    if !owner.is_empty() {
        write_texts(out, [owner]);
    }
    merge.iter().for_each(|merge| write_texts(out, [&merge.group]));
    if let Some(WebhookJobSpec { id, key, envelope, max_attempts }) = call {
        let head = format!("{id} {max_attempts} {key}\n");
        out.write_arg(&[head.as_bytes(), envelope].concat());
    }
}
