//! Transport of task pushes: batches of `TASKS_PUSH` on one lane.

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, RedisWrite as _, Value};

use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    command_arg_writers::{write_concatenated, write_number, write_texts},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    script_sources::TASKS_PUSH,
};
use crate::store::key_names::KeyNames;
use crate::{
    durations::{ceil_millis, saturating_micros},
    error::{Error, ErrorKind},
    store::tasks::{MAX_TASKS_PER_STEP, TaskId, TaskPushCommand, TaskPushOutcome, TaskRecord},
};

/// Record bytes that weigh as much as another task, so that batches of large tasks are shorter.
const RECORD_BYTES_PER_WEIGHT: usize = 8192;

/// Slots in which the store remembers the latest pushes of a process. Slot 0, before them, holds
/// the time at which their key was last renewed.
const DEDUP_SLOTS: u64 = 4096;

/// Transport of one lane.
pub(super) struct TaskPushTransport {
    pub(super) lanes: Arc<ConnectionLanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
    /// Identity under which the store remembers sequence numbers.
    pub(super) process_id: Arc<str>,
}

/// Push waiting to be sent.
pub(super) struct QueuedTaskPush {
    pub(super) push: TaskPushCommand,
    record: Bytes,
    /// Number within this process, by which the store recognizes a repeated push.
    sequence: u64,
}

impl QueuedTaskPush {
    pub(super) fn new(push: TaskPushCommand, sequence: u64) -> Self {
        Self { record: TaskRecord::encode_tail(&push).into(), push, sequence }
    }

    fn can_group_with(&self, other: &Self) -> bool {
        self.push.queue == other.push.queue && self.push.capacity == other.push.capacity
    }

    fn unique_window(&self) -> Option<(&str, u64)> {
        let unique = self.push.unique.as_ref()?;
        Some((unique.name.as_str(), ceil_millis(unique.window?)))
    }
}

impl BatchTransport for TaskPushTransport {
    type Command = QueuedTaskPush;
    type Reply = Result<TaskPushOutcome, Error>;
    type BatchConnection = TrackedConnection;
    type Payload = Cmd;

    const MAX_WEIGHT: usize = MAX_TASKS_PER_STEP;
    /// If all producers of a process waited for one batch, the server would be idle while they
    /// prepare the next.
    const PIPELINE_THRESHOLD: usize = 8;

    fn weight(queued: &QueuedTaskPush) -> usize {
        (1 + queued.record.len() / RECORD_BYTES_PER_WEIGHT).min(MAX_TASKS_PER_STEP)
    }

    fn reply_count(_: &QueuedTaskPush) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        pushes: impl Iterator<Item = &'a QueuedTaskPush> + Clone,
        by_text: bool,
    ) -> Cmd {
        let groups = group_by_queue(pushes);
        let script =
            if by_text { ["EVAL", TASKS_PUSH.source] } else { ["EVALSHA", TASKS_PUSH.sha1()] };
        let pushes = || groups.iter().flatten();
        let bytes: usize = pushes().map(|queued| queued.record.len() + 128).sum();
        let push_count = pushes().count();
        let mut out = Cmd::with_capacity(8 + 7 * push_count, script[1].len() + 1024 + bytes);
        write_texts(&mut out, script);
        let window_count = pushes().filter(|queued| queued.unique_window().is_some()).count();
        let guard_key =
            pushes().next().and_then(|queued| self.keys.slot_guard_key(queued.push.queue.shard()));
        write_number(&mut out, (2 * groups.len() + window_count + guard_key.iter().len()) as u64);
        groups.iter().for_each(|group| self.write_keys(group, &mut out));
        guard_key.iter().for_each(|parts| write_concatenated(&mut out, parts));
        groups.iter().for_each(|group| write_args(group, &mut out));
        out
    }

    async fn send(
        &self,
        connection: &mut TrackedConnection,
        payload: &Cmd,
    ) -> Result<Vec<Self::Reply>, batcher::BatchFault> {
        let reply = connection.connection.send_packed_command(payload).await;
        match classify_reply(connection, reply) {
            Ok(reply) => parse_replies(reply).ok_or_else(|| {
                batcher::BatchFault::Failed(Error::new(ErrorKind::Protocol, TASKS_PUSH.name))
            }),
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(TASKS_PUSH.name, error)))
            }
        }
    }

    fn handle_timeout(&self, connection: &TrackedConnection) {
        connection.record_timeout();
    }
}

impl TaskPushTransport {
    #[expect(clippy::indexing_slicing, reason = "a group has at least one push")]
    fn write_keys(&self, group: &[&QueuedTaskPush], out: &mut Cmd) {
        let queue = &group[0].push.queue;
        write_concatenated(out, &self.keys.queue_key_parts(queue, "z", ""));
        write_concatenated(out, &self.keys.pushes_parts(queue.shard(), &self.process_id));
        for (unique, _) in group.iter().filter_map(|queued| queued.unique_window()) {
            write_concatenated(out, &self.keys.queue_key_parts(queue, "zu", unique));
        }
    }
}

/// Groups consecutive pushes to one queue of one capacity.
#[expect(clippy::indexing_slicing, reason = "a group has at least one push")]
fn group_by_queue<'a>(
    pushes: impl Iterator<Item = &'a QueuedTaskPush>,
) -> Vec<Vec<&'a QueuedTaskPush>> {
    let mut groups: Vec<Vec<&QueuedTaskPush>> = Vec::new();
    for queued in pushes {
        match groups.last_mut() {
            Some(group) if group[0].can_group_with(queued) => group.push(queued),
            _ => groups.push(vec![queued]),
        }
    }
    groups
}

#[expect(clippy::indexing_slicing, reason = "a group has at least one push")]
fn write_args(group: &[&QueuedTaskPush], out: &mut Cmd) {
    let (max_tasks, max_bytes) = group[0].push.capacity;
    out.write_arg(format!("{} {max_tasks} {max_bytes}", group.len()).as_bytes());
    for queued in group {
        let push = &queued.push;
        write_texts(out, [push.id.as_str()]);
        let unique = push.unique.as_ref().map(|unique| unique.name.as_str());
        let kind = match (unique, queued.unique_window()) {
            (None, _) => "-".to_owned(),
            (Some(_), None) => "p".to_owned(),
            (Some(_), Some((_, window))) => format!("w{window}"),
        };
        let (sequence, delay) = (queued.sequence, saturating_micros(push.delay));
        out.write_arg(
            format!("{sequence} {} {delay} {kind}", 1 + sequence % DEDUP_SLOTS).as_bytes(),
        );
        unique.iter().for_each(|unique| write_texts(out, [unique]));
        out.write_arg(&queued.record);
    }
}

/// Parses the reply of a batch into one result per push.
fn parse_replies(reply: Value) -> Option<Vec<Result<TaskPushOutcome, Error>>> {
    let values = match reply {
        Value::Array(values) => values,
        letters => vec![letters],
    };
    let mut values = values.into_iter();
    let Some(Value::BulkString(letters)) = values.next() else { return None };
    let mut next_id = || match values.next()? {
        Value::BulkString(id) => TaskId::parse(std::str::from_utf8(&id).ok()?),
        _ => None,
    };
    let parse_outcome = |letter: u8| {
        Some(match letter {
            b'1' => Ok(TaskPushOutcome::Stored),
            b'f' => Ok(TaskPushOutcome::Full),
            b'k' => Ok(TaskPushOutcome::Duplicate(next_id()?)),
            b'?' => Err(Error::new(ErrorKind::Timeout, TASKS_PUSH.name)),
            b'!' => Err(Error::new(ErrorKind::Protocol, TASKS_PUSH.name)),
            _ => return None,
        })
    };
    letters.into_iter().map(parse_outcome).collect()
}
