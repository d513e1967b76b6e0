//! `tasks_*.lua`: tasks of queues that stand by themselves.

mod edit;
mod graves;
mod idle;
mod push;
#[cfg(test)]
mod tests;
mod turn;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use self::{graves::Graves, turn::Last};
use super::{
    Memory, done,
    ends::{Expiring, Index},
    post::{Mail, Post},
    shard::{Now, SWEEP},
};
use crate::{
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        wakeups::WakeupMessage,
        tasks::{
            DeadLetterPage, MAX_TASKS_PER_STEP, TaskHistory, TaskPushCommand, TaskPushOutcome, QueueStats, RunToken, TaskId, TaskState,
            TaskView, TaskBackend, TaskPollCommand, TaskPollOutcome, PurgeCursor, PurgePage,
        },
    },
};

/// All queues. Each has a lock of its own.
pub(super) type Queues = Mutex<HashMap<Key, Arc<Mutex<Queue>>>>;

#[derive(Default)]
pub(super) struct Queue {
    waiting: Line,
    running: Index<RunToken>,
    records: HashMap<TaskId, Bytes>,
    metas: HashMap<TaskId, TaskHistory>,
    uniques: HashMap<Arc<str>, TaskId>,
    windows: Expiring<Key, TaskId>,
    dead: Graves,
    /// Workers as `<node>:<worker>`.
    idle: Index<Arc<str>>,
    guard: Option<Guard>,
    turns: Expiring<Arc<str>, Last>,
    numbers: QueueStats,
    woke: u64,
    /// No further push is of an earlier time: those are for the last walk to throw away.
    next_push: u64,
    /// The debt of the limit of starts, as a time.
    tat: u64,
    swept: u64,
}

/// Tasks that wait, by the time from which they may be run; of the same time, the one that came first. (The scripts
/// give each a microsecond of its own instead; here the clock may stand still.)
#[derive(Default)]
struct Line {
    index: Index<(u64, TaskId)>,
    places: HashMap<TaskId, u64>,
    last: u64,
}

impl Line {
    fn set(&mut self, id: &TaskId, at: u64) {
        self.last += 1;
        self.put(id, at, self.last);
    }

    /// Before all others of its time.
    fn set_first(&mut self, id: &TaskId, at: u64) {
        self.put(id, at, 0);
    }

    fn put(&mut self, id: &TaskId, at: u64, place: u64) {
        self.remove(id);
        self.places.insert(id.clone(), place);
        self.index.set(&(place, id.clone()), at);
    }

    fn remove(&mut self, id: &TaskId) {
        if let Some(place) = self.places.remove(id) {
            self.index.remove(&(place, id.clone()));
        }
    }

    fn get(&self, id: &TaskId) -> Option<u64> {
        self.index.get(&(*self.places.get(id)?, id.clone()))
    }

    fn first(&self) -> Option<(u64, TaskId)> {
        self.index.first().map(|(at, (_, id))| (at, id))
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &TaskId)> {
        self.index.iter().map(|(at, (_, id))| (at, id))
    }

    /// When the last of them is due.
    fn end(&self) -> Option<u64> {
        self.index.iter().last().map(|(at, _)| at)
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

/// The worker that has the timer of what comes next.
struct Guard {
    until: u64,
    event: u64,
    who: Arc<str>,
}

/// A step about one queue.
struct At<'a> {
    queue: &'a mut Queue,
    mails: &'a Post,
    post: Vec<Mail>,
    now: u64,
}

impl Memory {
    fn at_queue<T>(&self, name: &Key, step: impl FnOnce(&mut At<'_>) -> T) -> T {
        let queue = Arc::clone(self.queues.lock().entry(name.clone()).or_default());
        self.at_that(&queue, step)
    }

    /// As `at_queue`, for a step that changes nothing: a queue that is not there is not made by it.
    fn look_at_queue<T>(&self, name: &Key, step: impl FnOnce(&mut At<'_>) -> T) -> T {
        let queue = self.queues.lock().get(name).cloned().unwrap_or_default();
        self.at_that(&queue, step)
    }

    fn at_that<T>(&self, queue: &Mutex<Queue>, step: impl FnOnce(&mut At<'_>) -> T) -> T {
        let mut queue = queue.lock();
        let (now, post) = (self.clock.now_us(), Vec::new());
        let mut at = At { queue: &mut queue, mails: &self.post, post, now };
        let answer = step(&mut at);
        let post = at.post;
        drop(queue);
        self.post.send(post);
        answer
    }
}

impl At<'_> {
    /// `wake` of `tasks.lua`.
    fn wake(&mut self) {
        while let Some((until, who)) = self.queue.idle.first() {
            self.queue.idle.remove(&who);
            if until > self.now && self.tell(&who) {
                return;
            }
        }
    }

    fn guard(&self) -> Option<&Guard> {
        self.queue.guard.as_ref().filter(|guard| guard.until > self.now)
    }

    fn tell_sooner(&mut self) {
        let guard = self.guard().map(|guard| Arc::clone(&guard.who));
        if !guard.is_some_and(|who| self.tell(&who)) {
            self.wake();
        }
    }

    /// False if nobody hears it.
    fn tell(&mut self, who: &str) -> bool {
        let (node, worker) = who.split_once(':').unwrap_or((who, ""));
        let heard = self.mails.hears(node);
        if heard {
            self.post.push(Mail { to: Some(node.into()), hint: WakeupMessage::TasksReady(worker.into()) });
        }
        heard
    }

    fn give_up(&mut self, unique: Option<&Arc<str>>, id: &TaskId) {
        if let Some(unique) = unique
            && self.queue.uniques.get(unique) == Some(id)
        {
            self.queue.uniques.remove(unique);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a place in it, or its end")]
    fn view(&self, id: &TaskId) -> Option<TaskView> {
        let record = self.queue.records.get(id)?;
        let line = record.iter().position(|b| *b == b'\n').unwrap_or(record.len());
        let head = String::from_utf8_lossy(&record[..line]);
        let at = self.queue.waiting.get(id);
        let state = match at {
            Some(_) => TaskState::Waiting,
            None if self.queue.dead.has(id) => TaskState::Dead,
            None => TaskState::Running,
        };
        Some(TaskView {
            id: id.clone(),
            state,
            due_in: Duration::from_micros(at.unwrap_or(0).saturating_sub(self.now)),
            pushed_us: head.split(' ').next().and_then(|at| at.parse().ok()).unwrap_or(0),
            payload_bytes: (record.len() - line).saturating_sub(1) as u64,
            history: self.queue.metas.get(id).cloned().unwrap_or_default(),
        })
    }

    fn sweep(&mut self) {
        let ms = Now::of(self.now).ms;
        self.queue.windows.sweep(ms, SWEEP);
        self.queue.turns.sweep(ms, SWEEP);
    }
}

impl TaskBackend for Memory {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        done(self.at_queue(&call.queue, |at| at.push(&call)))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        done(self.at_queue(&call.queue, |at| at.turn(&call)))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        longer: Duration,
    ) -> StoreFuture<'_, bool> {
        done(self.at_queue(&queue, |at| at.still_idle(&node, &worker, longer)))
    }

    fn renew_runs(&self, queue: Key, runs: Vec<RunToken>, lease: Duration) -> StoreFuture<'_, Vec<bool>> {
        done(self.at_queue(&queue, |at| {
            let until = at.now.saturating_add(crate::clock::micros(lease));
            let renew = |run: &RunToken| {
                let held = at.queue.running.get(run).is_some();
                if held {
                    at.queue.running.set(run, until);
                }
                held
            };
            runs.iter().map(renew).collect()
        }))
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        done(self.look_at_queue(&queue, |at| at.view(&id)))
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        done(self.look_at_queue(&queue, |at| at.queue.records.get(&id).cloned()))
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        done(self.at_queue(&queue, |at| at.cancel(&id)))
    }

    fn list_dead_letters(&self, queue: Key, after: u64, most: usize) -> StoreFuture<'_, DeadLetterPage> {
        done(self.look_at_queue(&queue, |at| at.dead_letters(after, most)))
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        done(self.at_queue(&queue, |at| at.redrive_one(&id)))
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        done(self.at_queue(&queue, |at| at.redrive_all(most, first, spacing)))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        done(self.at_queue(&queue, |at| at.purge_letter(&id)))
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        done(self.at_queue(&queue, |at| at.purge_letters(MAX_TASKS_PER_STEP)))
    }

    fn purge_waiting(&self, queue: Key, walk: Option<PurgeCursor>, most: usize) -> StoreFuture<'_, PurgePage> {
        done(self.at_queue(&queue, |at| at.purge_waiting(walk, most)))
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        self.at_queue(&queue, |at| at.pause(pause));
        done(())
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        done(self.look_at_queue(&queue, |at| at.stats()))
    }
}
