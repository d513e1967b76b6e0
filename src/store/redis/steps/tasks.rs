//! Steps of task queues.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::number;
use crate::{
    clock::micros,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        redis::{Redis, call::Copies, combine::Answer, read::Row, script, tasks::Asked},
        tasks::{
            DeadLetterPage, TaskHistory, TaskPushCommand, TaskPushOutcome, QueueStats, RunToken, TaskId, TaskState, TaskView,
            TaskBackend, TaskPollCommand, TaskPollOutcome, PurgeCursor, PurgePage,
        },
    },
};

type Args = Vec<Vec<u8>>;

impl TaskBackend for Redis {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        Box::pin(self.do_push(call))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        Box::pin(self.do_turn(call))
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
        // Who is not among them any more was told of something, or passed over: that is not to be undone here.
        pipe.cmd("ZADD").arg(idle).arg("XX").arg("INCR").arg(micros(longer));
        pipe.arg(format!("{node}:{worker}"));
        Box::pin(async move {
            // A second copy would prolong it once more. The turn that follows an error finds out.
            let answer = self.write(queue.shard(), "still_idle", &pipe, Copies::One).await?;
            Ok(matches!(&answer[..], [Value::Int(0), until] if *until != Value::Nil))
        })
    }

    fn renew_runs(&self, queue: Key, runs: Vec<RunToken>, lease: Duration) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let mut args = vec![number(micros(lease))];
            args.extend(runs.iter().map(|run| run.to_member().into_bytes()));
            let keys = [self.keys.queue_key(&queue, "zl", "")];
            let reply = self.script(queue.shard(), &script::RENEW_RUNS, &keys, &args).await?;
            let held = Row::of("tasks_renew", reply).text()?;
            Ok(held.bytes().map(|b| b == b'1').collect())
        })
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        Box::pin(async move {
            let mut row = self.look(&queue, "task", [id.as_str().into()].into()).await?;
            row.text()?;
            if row.is_empty() { Ok(None) } else { view(&mut row).map(Some) }
        })
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let mut row = self.look(&queue, "payload", [id.as_str().into()].into()).await?;
            if row.is_empty() { Ok(None) } else { row.bytes().map(Some) }
        })
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        Box::pin(async move {
            let mut row = self.edit(&queue, "cancel", [id.as_str().into()].into()).await?;
            Ok(state(&row.text()?))
        })
    }

    fn list_dead_letters(&self, queue: Key, after: u64, most: usize) -> StoreFuture<'_, DeadLetterPage> {
        Box::pin(async move {
            let args = [number(after), number(most as u64)];
            let mut row = self.look(&queue, "dead", args.into()).await?;
            let next = row.text()?.parse().ok();
            let mut letters = Vec::new();
            while !row.is_empty() {
                letters.push(view(&mut row)?);
            }
            Ok(DeadLetterPage { letters, next })
        })
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut row = self.edit(&queue, "redrive", [id.as_str().into()].into()).await?;
            Ok(row.number()? == 1)
        })
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        let args = [number(most as u64), number(micros(first)), number(micros(spacing))];
        Box::pin(self.count(queue, "redrives", args.into()))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut row = self.edit(&queue, "purge_one", [id.as_str().into()].into()).await?;
            Ok(row.number()? == 1)
        })
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        let args = [number(crate::store::MAX_TASKS_PER_STEP as u64)];
        Box::pin(self.count(queue, "purge", args.into()))
    }

    fn purge_waiting(&self, queue: Key, walk: Option<PurgeCursor>, most: usize) -> StoreFuture<'_, PurgePage> {
        let mut args = vec![number(most as u64)];
        if let Some(PurgeCursor { last_push: pushed, from_us: from, until_us: til }) = walk {
            args.extend([pushed, from, til].map(number));
        }
        Box::pin(async move {
            let mut row = self.edit(&queue, "purge_waiting", args).await?;
            let gone = usize::try_from(row.number()?).unwrap_or(usize::MAX);
            if row.is_empty() {
                return Ok(PurgePage { purged: gone, next: None });
            }
            let (pushed, from, til) = (row.number()?, row.number()?, row.number()?);
            Ok(PurgePage { purged: gone, next: Some(PurgeCursor { last_push: pushed, from_us: from, until_us: til }) })
        })
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        let verb = if pause { "pause" } else { "resume" };
        Box::pin(async move { self.edit(&queue, verb, Args::new()).await.map(drop) })
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        Box::pin(async move {
            let mut row = self.look(&queue, "stats", Args::new()).await?;
            let mut next = || row.number();
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

impl Redis {
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    async fn do_push(&self, call: TaskPushCommand) -> Result<TaskPushOutcome, Error> {
        let shard = call.queue.shard();
        self.pass(shard, script::PUSH_TASKS.name)?;
        let until = Instant::now() + self.deadline;
        let asked = Asked::new(call, self.pushed.fetch_add(1, Ordering::Relaxed));
        // Lanes and combiners are as many.
        let outcome = self.pushes[self.lanes.of(shard)].call(asked, until).await;
        self.note(shard, &outcome);
        let Answer { first, sent, .. } = outcome?;
        match first {
            // An earlier copy may be delivered yet, and be stored if there is room then, or nobody of that name.
            Ok(TaskPushOutcome::Full | TaskPushOutcome::Duplicate(_)) if sent > 1 => {
                Err(Error::new(ErrorKind::Timeout, script::PUSH_TASKS.name))
            }
            told => told,
        }
    }

    async fn look(&self, queue: &Key, verb: &str, args: Args) -> Result<Row, Error> {
        let mut all = vec![verb.into()];
        all.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply = self.script(queue.shard(), &script::LOOK_AT_TASKS, &keys, &all).await?;
        Ok(Row::of("tasks_look", reply))
    }

    async fn edit(&self, queue: &Key, verb: &str, args: Args) -> Result<Row, Error> {
        let mut all = vec![verb.into()];
        all.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply: Value = self.script(queue.shard(), &script::EDIT_TASKS, &keys, &all).await?;
        Ok(Row::of("tasks_edit", reply))
    }

    async fn count(&self, queue: Key, verb: &'static str, args: Args) -> Result<usize, Error> {
        let moved = self.edit(&queue, verb, args).await?.number()?;
        Ok(usize::try_from(moved).unwrap_or(usize::MAX))
    }
}

fn state(letter: &str) -> Option<TaskState> {
    match letter {
        "w" => Some(TaskState::Waiting),
        "r" => Some(TaskState::Running),
        "d" => Some(TaskState::Dead),
        _ => None,
    }
}

fn view(row: &mut Row) -> Result<TaskView, Error> {
    let id = TaskId::parse(&row.text()?).ok_or_else(|| row.odd())?;
    let state = state(&row.text()?).ok_or_else(|| row.odd())?;
    let due = Duration::from_micros(row.number()?);
    let head = row.text()?;
    let pushed_us = head.split(' ').next().and_then(|at| at.parse().ok()).unwrap_or(0);
    Ok(TaskView { id, state, due_in: due, pushed_us, payload_bytes: row.number()?, history: TaskHistory::decode(&row.text()?) })
}
