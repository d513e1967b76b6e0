//! Flights of `tasks_push.lua` on one lane: pushes that wait together go together.

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, RedisWrite as _, Value};

use super::{
    KeyNames, Lanes,
    ask::{joined, number, texts},
    combine::{self, Flights},
    connect::Socket,
    fault::{Fault, answer_of},
    script::PUSH_TASKS,
};
use crate::{
    clock::{micros, millis},
    error::{Error, ErrorKind},
    store::tasks::{MAX_TASKS_PER_STEP, TaskPushCommand, TaskPushOutcome, TaskRecord, TaskId},
};

/// Bytes that count as much as a task: a flight of large ones is shorter.
const LARGE: usize = 8192;

/// Numbers of a process's pushes that the store remembers. As many slots lie behind that of its first second.
const SLOTS: u64 = 4096;

/// Where a lane's pushes go.
pub(super) struct Pushes {
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
    /// Whose numbers its pushes have.
    pub(super) process: Arc<str>,
}

/// A push on its way.
pub(super) struct Asked {
    pub(super) push: TaskPushCommand,
    record: Bytes,
    /// Of this process: by it the store knows a push that it has had.
    number: u64,
}

impl Asked {
    pub(super) fn new(push: TaskPushCommand, number: u64) -> Self {
        Self { record: TaskRecord::encode_tail(&push).into(), push, number }
    }

    fn goes_with(&self, other: &Self) -> bool {
        self.push.queue == other.push.queue && self.push.capacity == other.push.capacity
    }

    fn window(&self) -> Option<(&str, u64)> {
        let unique = self.push.unique.as_ref()?;
        Some((unique.name.as_str(), millis(unique.window?)))
    }
}

impl Flights for Pushes {
    type Step = Asked;
    type Reply = Result<TaskPushOutcome, Error>;
    type Path = Socket;
    type Load = Cmd;

    const BATCH: usize = MAX_TASKS_PER_STEP;
    /// Producers of one process that all wait for one flight leave the server idle while they make the next ready.
    const ENOUGH: usize = 8;

    fn weight(step: &Asked) -> usize {
        (1 + step.record.len() / LARGE).min(MAX_TASKS_PER_STEP)
    }

    fn replies(_: &Asked) -> usize {
        1
    }

    async fn path(&self) -> Result<Socket, Error> {
        self.lanes.socket(self.lane).await
    }

    fn load<'a>(&self, steps: impl Iterator<Item = &'a Asked> + Clone, by_text: bool) -> Cmd {
        let groups = groups(steps);
        let script =
            if by_text { ["EVAL", PUSH_TASKS.code] } else { ["EVALSHA", PUSH_TASKS.sha()] };
        let steps = || groups.iter().flatten();
        let bytes: usize = steps().map(|step| step.record.len() + 128).sum();
        let count = steps().count();
        let mut out = Cmd::with_capacity(8 + 7 * count, script[1].len() + 1024 + bytes);
        texts(&mut out, script);
        let windows = steps().filter(|step| step.window().is_some()).count();
        let never = steps().next().and_then(|step| self.keys.slot_guard_key(step.push.queue.shard()));
        number(&mut out, (2 * groups.len() + windows + never.iter().len()) as u64);
        groups.iter().for_each(|group| self.write_keys(group, &mut out));
        never.iter().for_each(|parts| joined(&mut out, parts));
        groups.iter().for_each(|group| write_args(group, &mut out));
        out
    }

    async fn send(
        &self,
        path: &mut Socket,
        load: &Cmd,
    ) -> Result<Vec<Self::Reply>, combine::Fault> {
        let answer = path.connection.send_packed_command(load).await;
        match answer_of(path, answer) {
            Ok(reply) => read(reply).ok_or_else(|| {
                combine::Fault::Failed(Error::new(ErrorKind::Protocol, PUSH_TASKS.name))
            }),
            Err((Fault::NoScript, _)) => Err(combine::Fault::NoScript),
            Err((Fault::NotRun, _)) => Err(combine::Fault::NotRun),
            Err((Fault::Broken, _)) => Err(combine::Fault::Broken),
            Err((fault, error)) => {
                Err(combine::Fault::Failed(fault.explain(PUSH_TASKS.name, error)))
            }
        }
    }

    fn late(&self, path: &Socket) {
        path.timed_out();
    }
}

impl Pushes {
    #[expect(clippy::indexing_slicing, reason = "a group has at least one")]
    fn write_keys(&self, group: &[&Asked], out: &mut Cmd) {
        let queue = &group[0].push.queue;
        joined(out, &self.keys.queue_key_parts(queue, "z", ""));
        joined(out, &self.keys.pushes_parts(queue.shard(), &self.process));
        for (unique, _) in group.iter().filter_map(|step| step.window()) {
            joined(out, &self.keys.queue_key_parts(queue, "zu", unique));
        }
    }
}

/// Steps of one queue that come one after the other.
#[expect(clippy::indexing_slicing, reason = "a group has at least one")]
fn groups<'a>(steps: impl Iterator<Item = &'a Asked>) -> Vec<Vec<&'a Asked>> {
    let mut groups: Vec<Vec<&Asked>> = Vec::new();
    for step in steps {
        match groups.last_mut() {
            Some(group) if group[0].goes_with(step) => group.push(step),
            _ => groups.push(vec![step]),
        }
    }
    groups
}

#[expect(clippy::indexing_slicing, reason = "a group has at least one")]
fn write_args(group: &[&Asked], out: &mut Cmd) {
    let (tasks, bytes) = group[0].push.capacity;
    out.write_arg(format!("{} {tasks} {bytes}", group.len()).as_bytes());
    for step in group {
        let push = &step.push;
        texts(out, [push.id.as_str()]);
        let unique = push.unique.as_ref().map(|unique| unique.name.as_str());
        let kind = match (unique, step.window()) {
            (None, _) => "-".to_owned(),
            (Some(_), None) => "p".to_owned(),
            (Some(_), Some((_, window))) => format!("w{window}"),
        };
        let (number, delay) = (step.number, micros(push.delay));
        out.write_arg(format!("{number} {} {delay} {kind}", 1 + number % SLOTS).as_bytes());
        unique.iter().for_each(|unique| texts(out, [unique]));
        out.write_arg(&step.record);
    }
}

/// To each push its own.
fn read(reply: Value) -> Option<Vec<Result<TaskPushOutcome, Error>>> {
    let words = match reply {
        Value::Array(words) => words,
        letters => vec![letters],
    };
    let mut words = words.into_iter();
    let Some(Value::BulkString(letters)) = words.next() else { return None };
    let mut known = || match words.next()? {
        Value::BulkString(id) => TaskId::parse(std::str::from_utf8(&id).ok()?),
        _ => None,
    };
    let one = |letter: u8| {
        Some(match letter {
            b'1' => Ok(TaskPushOutcome::Stored),
            b'f' => Ok(TaskPushOutcome::Full),
            b'k' => Ok(TaskPushOutcome::Duplicate(known()?)),
            b'?' => Err(Error::new(ErrorKind::Timeout, PUSH_TASKS.name)),
            b'!' => Err(Error::new(ErrorKind::Protocol, PUSH_TASKS.name)),
            _ => return None,
        })
    };
    letters.into_iter().map(one).collect()
}
