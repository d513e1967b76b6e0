//! Implementation of [`TaskBackend`]: each operation as its script call.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;

use super::{ScriptArgs, number_arg};
use crate::{
    durations::saturating_micros,
    error::Error,
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        redis::{RedisBackend, call_execution::ResendPolicy, reply_reader::ReplyReader, scripts},
        tasks::{
            DeadLetterPage, PurgeCursor, PurgePage, QueueStats, RunToken, TaskBackend, TaskHistory,
            TaskId, TaskPollCommand, TaskPollOutcome, TaskPushCommand, TaskPushOutcome, TaskState,
            TaskView,
        },
    },
};

impl TaskBackend for RedisBackend {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        Box::pin(self.push_in_batch(call))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        Box::pin(self.call_task_poll(call))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        extension: Duration,
    ) -> StoreFuture<'_, bool> {
        let [waiting, running, idle] =
            ["z", "zl", "zw"].map(|kind| self.keys.queue_key(&queue, kind, ""));
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(waiting).arg(running);
        // `XX`: a worker that is not in the set was woken or passed over, which must not be undone.
        pipe.cmd("ZADD").arg(idle).arg("XX").arg("INCR").arg(saturating_micros(extension));
        pipe.arg(format!("{node}:{worker}"));
        Box::pin(async move {
            // A second copy would extend it once more. The poll that follows an error finds out.
            let replies = self
                .run_write_pipeline(queue.shard(), "still_idle", &pipe, ResendPolicy::Never)
                .await?;
            Ok(matches!(&replies[..], [Value::Int(0), idle_until] if *idle_until != Value::Nil))
        })
    }

    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let mut args = vec![number_arg(saturating_micros(lease))];
            args.extend(runs.iter().map(|run| run.to_member().into_bytes()));
            let keys = [self.keys.queue_key(&queue, "zl", "")];
            let reply =
                self.call_script(queue.shard(), &scripts::TASKS_RENEW, &keys, &args).await?;
            let renewed = ReplyReader::new("tasks_renew", reply).read_text()?;
            Ok(renewed.bytes().map(|b| b == b'1').collect())
        })
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        Box::pin(async move {
            let mut reader =
                self.call_inspect_script(&queue, "task", [id.as_str().into()].into()).await?;
            reader.read_text()?;
            if reader.is_empty() { Ok(None) } else { parse_task_view(&mut reader).map(Some) }
        })
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let mut reader =
                self.call_inspect_script(&queue, "payload", [id.as_str().into()].into()).await?;
            if reader.is_empty() { Ok(None) } else { reader.read_bytes().map(Some) }
        })
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        Box::pin(async move {
            let mut reader =
                self.call_admin_script(&queue, "cancel", [id.as_str().into()].into()).await?;
            Ok(parse_task_state(&reader.read_text()?))
        })
    }

    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        max_letters: usize,
    ) -> StoreFuture<'_, DeadLetterPage> {
        Box::pin(async move {
            let args = [number_arg(after), number_arg(max_letters as u64)];
            let mut reader = self.call_inspect_script(&queue, "dead", args.into()).await?;
            let next = reader.read_text()?.parse().ok();
            let mut dead_letters = Vec::new();
            while !reader.is_empty() {
                dead_letters.push(parse_task_view(&mut reader)?);
            }
            Ok(DeadLetterPage { dead_letters, next })
        })
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut reader =
                self.call_admin_script(&queue, "redrive", [id.as_str().into()].into()).await?;
            Ok(reader.read_number()? == 1)
        })
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        max_letters: usize,
        first_delay: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        let args = [
            number_arg(max_letters as u64),
            number_arg(saturating_micros(first_delay)),
            number_arg(saturating_micros(spacing)),
        ];
        Box::pin(self.edit_and_count(queue, "redrives", args.into()))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut reader =
                self.call_admin_script(&queue, "purge_one", [id.as_str().into()].into()).await?;
            Ok(reader.read_number()? == 1)
        })
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        let args = [number_arg(crate::store::MAX_TASKS_PER_STEP as u64)];
        Box::pin(self.edit_and_count(queue, "purge", args.into()))
    }

    fn purge_waiting(
        &self,
        queue: Key,
        cursor: Option<PurgeCursor>,
        max_tasks: usize,
    ) -> StoreFuture<'_, PurgePage> {
        let mut args = vec![number_arg(max_tasks as u64)];
        if let Some(PurgeCursor { last_push, from_us, until_us }) = cursor {
            args.extend([last_push, from_us, until_us].map(number_arg));
        }
        Box::pin(async move {
            let mut reader = self.call_admin_script(&queue, "purge_waiting", args).await?;
            let purged = usize::try_from(reader.read_number()?).unwrap_or(usize::MAX);
            if reader.is_empty() {
                return Ok(PurgePage { purged, next: None });
            }
            let (last_push, from_us, until_us) =
                (reader.read_number()?, reader.read_number()?, reader.read_number()?);
            Ok(PurgePage { purged, next: Some(PurgeCursor { last_push, from_us, until_us }) })
        })
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        let verb = if pause { "pause" } else { "resume" };
        Box::pin(
            async move { self.call_admin_script(&queue, verb, ScriptArgs::new()).await.map(drop) },
        )
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        Box::pin(async move {
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
        })
    }
}

impl RedisBackend {
    async fn call_inspect_script(
        &self,
        queue: &Key,
        verb: &str,
        args: ScriptArgs,
    ) -> Result<ReplyReader, Error> {
        let mut script_args = vec![verb.into()];
        script_args.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply =
            self.call_script(queue.shard(), &scripts::TASKS_INSPECT, &keys, &script_args).await?;
        Ok(ReplyReader::new("tasks_inspect", reply))
    }

    async fn call_admin_script(
        &self,
        queue: &Key,
        verb: &str,
        args: ScriptArgs,
    ) -> Result<ReplyReader, Error> {
        let mut script_args = vec![verb.into()];
        script_args.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply: Value = self
            .call_script(
                queue.shard(),
                &scripts::TASKS_CANCEL_REDRIVE_PURGE_PAUSE,
                &keys,
                &script_args,
            )
            .await?;
        Ok(ReplyReader::new("tasks_cancel_redrive_purge_pause", reply))
    }

    async fn edit_and_count(
        &self,
        queue: Key,
        verb: &'static str,
        args: ScriptArgs,
    ) -> Result<usize, Error> {
        let moved = self.call_admin_script(&queue, verb, args).await?.read_number()?;
        Ok(usize::try_from(moved).unwrap_or(usize::MAX))
    }
}

fn parse_task_state(letter: &str) -> Option<TaskState> {
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
