//! Inspection of a queue: a task, its payload, the dead letters, and the counts.

use std::time::Duration;

use bytes::Bytes;

use super::{ScriptArgs, number_arg};
use crate::{
    durations::saturating_micros,
    error::Error,
    key::Key,
    store::{
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
        tasks::{
            DeadLetterPage, QueueStats, TaskFilter, TaskHistory, TaskId, TaskListPage, TaskState,
            TaskView,
        },
    },
};

impl RedisBackend {
    pub(super) async fn read_task_view(
        &self,
        queue: Key,
        id: TaskId,
    ) -> Result<Option<TaskView>, Error> {
        let mut reader =
            self.call_inspect_script(&queue, "task", [id.as_str().into()].into()).await?;
        reader.read_text()?;
        if reader.is_empty() { Ok(None) } else { parse_task_view(&mut reader).map(Some) }
    }

    pub(super) async fn read_task_payload(
        &self,
        queue: Key,
        id: TaskId,
    ) -> Result<Option<Bytes>, Error> {
        let mut reader =
            self.call_inspect_script(&queue, "payload", [id.as_str().into()].into()).await?;
        if reader.is_empty() { Ok(None) } else { reader.read_bytes().map(Some) }
    }

    pub(super) async fn read_dead_letters(
        &self,
        queue: Key,
        after: u64,
        max_letters: usize,
    ) -> Result<DeadLetterPage, Error> {
        let args = [number_arg(after), number_arg(max_letters as u64)];
        let mut reader = self.call_inspect_script(&queue, "dead", args.into()).await?;
        let next = reader.read_text()?.parse().ok();
        let mut dead_letters = Vec::new();
        while !reader.is_empty() {
            dead_letters.push(parse_task_view(&mut reader)?);
        }
        Ok(DeadLetterPage { dead_letters, next })
    }

    pub(super) async fn read_task_list(
        &self,
        queue: Key,
        filter: TaskFilter,
        offset: u64,
        max_tasks: usize,
    ) -> Result<TaskListPage, Error> {
        let args = [number_arg(offset), number_arg(max_tasks as u64)];
        let mut reader = self.call_inspect_script(&queue, filter.as_str(), args.into()).await?;
        let next = reader.read_text()?.parse().ok();
        let oldest_due = Duration::from_micros(reader.read_number()?);
        let mut tasks = Vec::new();
        while !reader.is_empty() {
            tasks.push(parse_task_view(&mut reader)?);
        }
        Ok(TaskListPage { tasks, next, oldest_due })
    }

    pub(super) async fn read_queue_stats(&self, queue: Key) -> Result<QueueStats, Error> {
        let mut reader = self.call_inspect_script(&queue, "stats", ScriptArgs::new()).await?;
        let mut next = || reader.read_number();
        Ok(QueueStats {
            waiting: next()?,
            due: next()?,
            running: next()?,
            dead_letters: next()?,
            bytes: next()?,
            pushed: next()?,
            done: next()?,
            failed: next()?,
            panicked: next()?,
            crashed: next()?,
            dead: next()?,
            trimmed: next()?,
            cancelled: next()?,
            lost: next()?,
            paused: next()? > 0,
            dead_bytes: next()?,
        })
    }

    pub(super) async fn count_unserved_tasks(
        &self,
        queue: Key,
        poll_validity: Duration,
    ) -> Result<u64, Error> {
        let args = [number_arg(saturating_micros(poll_validity))];
        self.call_inspect_script(&queue, "unserved", args.into()).await?.read_number()
    }

    async fn call_inspect_script(
        &self,
        queue: &Key,
        verb: &str,
        args: ScriptArgs,
    ) -> Result<ReplyReader, Error> {
        let mut script_args = vec![verb.into()];
        script_args.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply = self
            .call_script(queue.shard(), &script_sources::TASKS_INSPECT, &keys, &script_args)
            .await?;
        Ok(ReplyReader::new("tasks_inspect", reply))
    }
}

pub(super) fn parse_task_state(letter: &str) -> Option<TaskState> {
    match letter {
        "w" => Some(TaskState::Waiting),
        "r" => Some(TaskState::Running),
        "d" => Some(TaskState::Dead),
        _ => None,
    }
}

fn parse_task_view(reader: &mut ReplyReader) -> Result<TaskView, Error> {
    let id = TaskId::parse(&reader.read_text()?).ok_or_else(|| reader.protocol_error())?;
    let state = parse_task_state(&reader.read_text()?).ok_or_else(|| reader.protocol_error())?;
    let due_in = Duration::from_micros(reader.read_number()?);
    let record_head = reader.read_text()?;
    let pushed_us = record_head.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0);
    Ok(TaskView {
        id,
        state,
        due_in,
        pushed_us,
        payload_bytes: reader.read_number()?,
        history: TaskHistory::decode(&reader.read_text()?),
    })
}
