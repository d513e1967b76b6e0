//! Implementation of [`TaskBackend`]: each operation as its script call.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::number_arg;
use crate::{
    clock::saturating_micros,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        redis::{
            RedisBackend, batcher::CallReply, call_execution::ResendPolicy,
            reply_reader::ReplyReader, scripts, task_push_transport::QueuedPush,
        },
        tasks::{
            DeadLetterPage, PurgeCursor, PurgePage, QueueStats, RunToken, TaskBackend, TaskHistory,
            TaskId, TaskPollCommand, TaskPollOutcome, TaskPushCommand, TaskPushOutcome, TaskState,
            TaskView,
        },
    },
};

type TaskScriptArgs = Vec<Vec<u8>>;

impl TaskBackend for RedisBackend {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        Box::pin(self.do_push_task(call))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        Box::pin(self.do_poll_tasks(call))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        longer: Duration,
    ) -> StoreFuture<'_, bool> {
        let [waiting, running, idle] =
            ["z", "zl", "zw"].map(|kind| self.keys.queue_key(&queue, kind, ""));
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(waiting).arg(running);
        // `XX`: a worker that is not in the set was woken or passed over, which must not be undone.
        pipe.cmd("ZADD").arg(idle).arg("XX").arg("INCR").arg(saturating_micros(longer));
        pipe.arg(format!("{node}:{worker}"));
        Box::pin(async move {
            // A second copy would extend it once more. The poll that follows an error finds out.
            let answer = self
                .run_write_pipeline(queue.shard(), "still_idle", &pipe, ResendPolicy::Never)
                .await?;
            Ok(matches!(&answer[..], [Value::Int(0), until] if *until != Value::Nil))
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
            let held = ReplyReader::new("tasks_renew", reply).read_text()?;
            Ok(held.bytes().map(|b| b == b'1').collect())
        })
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        Box::pin(async move {
            let mut row =
                self.call_inspect_script(&queue, "task", [id.as_str().into()].into()).await?;
            row.read_text()?;
            if row.is_empty() { Ok(None) } else { parse_task_view(&mut row).map(Some) }
        })
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let mut row =
                self.call_inspect_script(&queue, "payload", [id.as_str().into()].into()).await?;
            if row.is_empty() { Ok(None) } else { row.read_bytes().map(Some) }
        })
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        Box::pin(async move {
            let mut row =
                self.call_admin_script(&queue, "cancel", [id.as_str().into()].into()).await?;
            Ok(parse_task_state(&row.read_text()?))
        })
    }

    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        most: usize,
    ) -> StoreFuture<'_, DeadLetterPage> {
        Box::pin(async move {
            let args = [number_arg(after), number_arg(most as u64)];
            let mut row = self.call_inspect_script(&queue, "dead", args.into()).await?;
            let next = row.read_text()?.parse().ok();
            let mut letters = Vec::new();
            while !row.is_empty() {
                letters.push(parse_task_view(&mut row)?);
            }
            Ok(DeadLetterPage { letters, next })
        })
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut row =
                self.call_admin_script(&queue, "redrive", [id.as_str().into()].into()).await?;
            Ok(row.read_number()? == 1)
        })
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        let args = [
            number_arg(most as u64),
            number_arg(saturating_micros(first)),
            number_arg(saturating_micros(spacing)),
        ];
        Box::pin(self.edit_and_count(queue, "redrives", args.into()))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut row =
                self.call_admin_script(&queue, "purge_one", [id.as_str().into()].into()).await?;
            Ok(row.read_number()? == 1)
        })
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        let args = [number_arg(crate::store::MAX_TASKS_PER_STEP as u64)];
        Box::pin(self.edit_and_count(queue, "purge", args.into()))
    }

    fn purge_waiting(
        &self,
        queue: Key,
        walk: Option<PurgeCursor>,
        most: usize,
    ) -> StoreFuture<'_, PurgePage> {
        let mut args = vec![number_arg(most as u64)];
        if let Some(PurgeCursor { last_push: pushed, from_us: from, until_us: til }) = walk {
            args.extend([pushed, from, til].map(number_arg));
        }
        Box::pin(async move {
            let mut row = self.call_admin_script(&queue, "purge_waiting", args).await?;
            let gone = usize::try_from(row.read_number()?).unwrap_or(usize::MAX);
            if row.is_empty() {
                return Ok(PurgePage { purged: gone, next: None });
            }
            let (pushed, from, til) = (row.read_number()?, row.read_number()?, row.read_number()?);
            Ok(PurgePage {
                purged: gone,
                next: Some(PurgeCursor { last_push: pushed, from_us: from, until_us: til }),
            })
        })
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        let verb = if pause { "pause" } else { "resume" };
        Box::pin(async move {
            self.call_admin_script(&queue, verb, TaskScriptArgs::new()).await.map(drop)
        })
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        Box::pin(async move {
            let mut row = self.call_inspect_script(&queue, "stats", TaskScriptArgs::new()).await?;
            let mut next = || row.read_number();
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
    #[expect(clippy::indexing_slicing, reason = "there is one for each lane")]
    async fn do_push_task(&self, call: TaskPushCommand) -> Result<TaskPushOutcome, Error> {
        let shard = call.queue.shard();
        self.check_breaker(shard, scripts::TASKS_PUSH.name)?;
        let until = Instant::now() + self.deadline;
        let asked = QueuedPush::new(call, self.next_push.fetch_add(1, Ordering::Relaxed));
        let outcome = self.push_batchers[self.lanes.lane_of_shard(shard)].call(asked, until).await;
        self.record_outcome(shard, &outcome);
        let CallReply { first, attempts: sent, .. } = outcome?;
        match first {
            // An earlier copy may still arrive, and be stored if by then there is room or the
            // unique key is free.
            Ok(TaskPushOutcome::Full | TaskPushOutcome::Duplicate(_)) if sent > 1 => {
                Err(Error::new(ErrorKind::Timeout, scripts::TASKS_PUSH.name))
            }
            told => told,
        }
    }

    async fn call_inspect_script(
        &self,
        queue: &Key,
        verb: &str,
        args: TaskScriptArgs,
    ) -> Result<ReplyReader, Error> {
        let mut all = vec![verb.into()];
        all.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply = self.call_script(queue.shard(), &scripts::TASKS_INSPECT, &keys, &all).await?;
        Ok(ReplyReader::new("tasks_inspect", reply))
    }

    async fn call_admin_script(
        &self,
        queue: &Key,
        verb: &str,
        args: TaskScriptArgs,
    ) -> Result<ReplyReader, Error> {
        let mut all = vec![verb.into()];
        all.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply: Value =
            self.call_script(queue.shard(), &scripts::TASKS_ADMIN, &keys, &all).await?;
        Ok(ReplyReader::new("tasks_admin", reply))
    }

    async fn edit_and_count(
        &self,
        queue: Key,
        verb: &'static str,
        args: TaskScriptArgs,
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

fn parse_task_view(row: &mut ReplyReader) -> Result<TaskView, Error> {
    let id = TaskId::parse(&row.read_text()?).ok_or_else(|| row.protocol_error())?;
    let state = parse_task_state(&row.read_text()?).ok_or_else(|| row.protocol_error())?;
    let due = Duration::from_micros(row.read_number()?);
    let head = row.read_text()?;
    let pushed_us = head.split(' ').next().and_then(|at| at.parse().ok()).unwrap_or(0);
    Ok(TaskView {
        id,
        state,
        due_in: due,
        pushed_us,
        payload_bytes: row.read_number()?,
        history: TaskHistory::decode(&row.read_text()?),
    })
}
