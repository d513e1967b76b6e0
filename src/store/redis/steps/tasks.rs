//! Steps of task queues.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::number;
use crate::{
    clock::{micros, millis},
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::Step,
        redis::{Redis, combine::Answer, read::Row, script, tasks::Asked},
        tasks::{
            DeadPage, End, EndAs, Meta, Purge, Push, PushedAs, QueueStats, RunToken, Started,
            TaskId, TaskState, TaskView, Tasks, Turn, Turned,
        },
    },
};

type Args = Vec<Vec<u8>>;

impl Tasks for Redis {
    fn push_task(&self, call: Push) -> Step<'_, PushedAs> {
        Box::pin(self.do_push(call))
    }

    fn turn(&self, call: Turn) -> Step<'_, Turned> {
        Box::pin(self.do_turn(call))
    }

    fn renew_runs(&self, queue: Key, runs: Vec<RunToken>, lease: Duration) -> Step<'_, Vec<bool>> {
        Box::pin(async move {
            let mut args = vec![number(micros(lease))];
            args.extend(runs.iter().map(|run| run.member().into_bytes()));
            let keys = [self.keys.task(&queue, "zl", "")];
            let reply = self.script(queue.shard(), &script::RENEW_RUNS, &keys, &args).await?;
            let held = Row::of("tasks_renew", reply).text()?;
            Ok(held.bytes().map(|b| b == b'1').collect())
        })
    }

    fn task(&self, queue: Key, id: TaskId) -> Step<'_, Option<TaskView>> {
        Box::pin(async move {
            let mut row = self.look(&queue, "task", [id.as_str().into()].into()).await?;
            row.text()?;
            if row.is_empty() { Ok(None) } else { view(&mut row).map(Some) }
        })
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> Step<'_, Option<Bytes>> {
        Box::pin(async move {
            let mut row = self.look(&queue, "payload", [id.as_str().into()].into()).await?;
            if row.is_empty() { Ok(None) } else { row.bytes().map(Some) }
        })
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> Step<'_, Option<TaskState>> {
        Box::pin(async move {
            let mut row = self.edit(&queue, "cancel", [id.as_str().into()].into()).await?;
            Ok(state(&row.text()?))
        })
    }

    fn dead_tasks(&self, queue: Key, after: u64, most: usize) -> Step<'_, DeadPage> {
        Box::pin(async move {
            let args = [number(after), number(most as u64)];
            let mut row = self.look(&queue, "dead", args.into()).await?;
            let next = row.text()?.parse().ok();
            let mut letters = Vec::new();
            while !row.is_empty() {
                letters.push(view(&mut row)?);
            }
            Ok(DeadPage { letters, next })
        })
    }

    fn redrive_task(&self, queue: Key, id: TaskId) -> Step<'_, bool> {
        Box::pin(async move {
            let mut row = self.edit(&queue, "redrive", [id.as_str().into()].into()).await?;
            Ok(row.number()? == 1)
        })
    }

    fn redrive_tasks(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> Step<'_, usize> {
        let args = [number(most as u64), number(micros(first)), number(micros(spacing))];
        Box::pin(self.count(queue, "redrives", args.into()))
    }

    fn purge_tasks(&self, queue: Key, what: Purge) -> Step<'_, usize> {
        let which = if what == Purge::Waiting { "z" } else { "d" };
        let args = [which.into(), number(crate::store::MOST_RUNS as u64)];
        Box::pin(self.count(queue, "purge", args.into()))
    }

    fn pause_tasks(&self, queue: Key, pause: bool) -> Step<'_, ()> {
        let verb = if pause { "pause" } else { "resume" };
        Box::pin(async move { self.edit(&queue, verb, Args::new()).await.map(drop) })
    }

    fn task_stats(&self, queue: Key) -> Step<'_, QueueStats> {
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
    async fn do_push(&self, call: Push) -> Result<PushedAs, Error> {
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
            Ok(PushedAs::Full | PushedAs::Known(_)) if sent > 1 => {
                Err(Error::new(ErrorKind::Timeout, script::PUSH_TASKS.name))
            }
            told => told,
        }
    }

    async fn do_turn(&self, call: Turn) -> Result<Turned, Error> {
        let keys =
            [self.keys.task(&call.queue, "z", ""), self.keys.task(&call.queue, "zr", &call.worker)];
        let mut args: Args = vec![terms(&call).into()];
        call.ends.iter().for_each(|end| write_end(end, &mut args));
        let reply = self.script(call.queue.shard(), &script::TURN, &keys, &args).await?;
        match reply {
            Value::BulkString(text) => next_run(&text.into())
                .ok_or_else(|| Error::new(ErrorKind::Protocol, script::TURN.name)),
            list => turned(Row::of(script::TURN.name, list), call.ends.len()),
        }
    }

    async fn look(&self, queue: &Key, verb: &str, args: Args) -> Result<Row, Error> {
        let mut all = vec![verb.into()];
        all.extend(args);
        let keys = self.keys.tasks(queue);
        let reply = self.script(queue.shard(), &script::LOOK_AT_TASKS, &keys, &all).await?;
        Ok(Row::of("tasks_look", reply))
    }

    async fn edit(&self, queue: &Key, verb: &str, args: Args) -> Result<Row, Error> {
        let mut all = vec![verb.into()];
        all.extend(args);
        let keys = self.keys.tasks(queue);
        let reply: Value = self.script(queue.shard(), &script::EDIT_TASKS, &keys, &all).await?;
        Ok(Row::of("tasks_edit", reply))
    }

    async fn count(&self, queue: Key, verb: &'static str, args: Args) -> Result<usize, Error> {
        let moved = self.edit(&queue, verb, args).await?.number()?;
        Ok(usize::try_from(moved).unwrap_or(usize::MAX))
    }
}

fn terms(call: &Turn) -> String {
    let Turn { node, worker, number, lease, limits, graves, .. } = call;
    let mixed = call.ends.iter().any(|end| !is_mere_success(end));
    let limited = limits.running > 0 || limits.interval_us > 0;
    // One run has ended and one is wanted: whoever had an idle place before has none now.
    let usual = call.ends.len() == 1 && call.want == 1 && !mixed && !limited;
    let usual = usual && !call.listed && !call.idle.is_zero();
    let letter = if usual { 'u' } else { 'x' };
    // What was told of a turn is kept for ten minutes longer than its runs.
    format!(
        "{letter}{node}:{worker}.{number} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        call.want + 1,
        u64::from(call.listed),
        u64::from(mixed),
        micros(*lease),
        millis(*lease + Duration::from_secs(600)),
        micros(call.idle),
        limits.running,
        limits.interval_us,
        limits.burst,
        micros(graves.keep),
        graves.most,
        graves.bytes,
        graves.crashes,
    )
}

fn is_mere_success(end: &End) -> bool {
    matches!(end.verdict, EndAs::Done) && end.unique.is_none()
}

fn write_end(end: &End, args: &mut Args) {
    let letter = |small: &'static str, capital| end.unique.as_ref().map_or(small, |_| capital);
    let bytes = end.bytes;
    args.push(match &end.verdict {
        EndAs::Done => format!("{}{bytes}", letter("d", "D")).into(),
        EndAs::Retry { delay, fault, reason } => {
            let (letter, delay) = (letter("r", "R"), micros(*delay));
            format!("{letter}{bytes} {delay} {} {reason}", fault.letter()).into()
        }
        EndAs::Dead { fault, reason } => {
            format!("{}{bytes} 0 {} {reason}", letter("k", "K"), fault.letter()).into()
        }
        EndAs::Back { delay } => format!("{}{bytes} {}  ", letter("b", "B"), micros(*delay)).into(),
    });
    args.push(end.run.member().into_bytes());
    args.extend(end.unique.iter().map(|unique| unique.as_bytes().to_vec()));
}

/// What `tasks_next.lua` answers: the end stands, and this run has begun.
fn next_run(text: &Bytes) -> Option<Turned> {
    let rest = text.strip_prefix(b"1")?;
    let (id, rest) = rest.split_at_checked(TaskId::LENGTH)?;
    let cut = rest.iter().position(|&byte| byte == b' ')?;
    let (attempt, record) = rest.split_at_checked(cut)?;
    let id = TaskId::parse(std::str::from_utf8(id).ok()?)?;
    let attempt = std::str::from_utf8(attempt).ok()?.parse().unwrap_or(u32::MAX);
    let run = Started { id, attempt, record: text.slice_ref(record.get(1..)?) };
    Some(Turned { stood: vec![true], runs: vec![run], wait: None, listed: false })
}

fn turned(mut row: Row, ends: usize) -> Result<Turned, Error> {
    let mut stood: Vec<bool> = row.text()?.bytes().map(|b| b == b'1').collect();
    // A turn that was too late is told nothing: it has nothing any more.
    stood.resize(ends, false);
    let wait = row.text()?.parse().ok().map(Duration::from_micros);
    let listed = row.number()? == 1;
    let mut runs = Vec::new();
    while !row.is_empty() {
        let id = TaskId::parse(&row.text()?).ok_or_else(|| row.odd())?;
        let attempt = u32::try_from(row.number()?).unwrap_or(u32::MAX);
        runs.push(Started { id, attempt, record: row.bytes()? });
    }
    Ok(Turned { stood, runs, wait, listed })
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
    Ok(TaskView { id, state, due, pushed_us, bytes: row.number()?, meta: Meta::read(&row.text()?) })
}
