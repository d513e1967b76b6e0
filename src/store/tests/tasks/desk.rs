//! A queue and its workers, for cases that say what happens and when.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Rig;
use crate::{
    key::Key,
    store::{
        backend::NodeId,
        tasks::{
            DeadLetterLimits, RunToken, StartedTask, TaskFault, TaskId, TaskOutcome,
            TaskPollCommand, TaskPollOutcome, TaskPushCommand, TaskPushOutcome, TaskRecord,
            TaskRunLimits, TaskSettlement, TaskView, UniqueKey,
        },
        wakeups::Wakeups,
    },
};

pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const KEEP: Duration = Duration::from_secs(3600);
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn queue() -> Key {
    Key::custom("emails")
}

/// A task that is due at once.
pub(super) fn task(payload: &str) -> TaskPushCommand {
    TaskPushCommand {
        queue: queue(),
        id: TaskId::new(),
        delay: Duration::ZERO,
        unique: None,
        retry_after_crash: true,
        max_attempts: 3,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        capacity: (1000, 1 << 20),
    }
}

pub(super) fn later(payload: &str, delay: Duration) -> TaskPushCommand {
    TaskPushCommand { delay, ..task(payload) }
}

pub(super) fn unique(payload: &str, key: &str, window: Option<Duration>) -> TaskPushCommand {
    TaskPushCommand { unique: Some(UniqueKey { name: Key::custom(key), window }), ..task(payload) }
}

/// A worker that counts its turns.
pub(super) struct Worker<'a> {
    pub(super) rig: &'a Rig,
    pub(super) node: NodeId,
    pub(super) id: Arc<str>,
    pub(super) number: AtomicU64,
    /// Hear for it.
    pub(super) hints: Arc<Wakeups>,
    pub(super) bell: Arc<Notify>,
    pub(super) limits: TaskRunLimits,
    pub(super) graves: DeadLetterLimits,
}

impl<'a> Worker<'a> {
    pub(super) fn new(rig: &'a Rig) -> Self {
        let (node, hints) = (NodeId::new(), Arc::new(Wakeups::default()));
        let id = node.as_str().into();
        let bell = hints.subscribe_tasks(&id);
        let graves = DeadLetterLimits {
            retention: KEEP,
            max_count: 100,
            max_bytes: 1 << 20,
            max_crashes: 2,
        };
        let (number, limits) = (AtomicU64::new(0), TaskRunLimits::default());
        Self { rig, node, id, number, hints, bell, limits, graves }
    }

    /// One whose messages are delivered.
    pub(super) async fn listening(rig: &'a Rig) -> Self {
        let worker = Self::new(rig);
        rig.listen(&worker.node, &worker.hints).await;
        if rig.resyncs() {
            worker.bell.notified().await;
        }
        worker
    }

    pub(super) fn turn(&self, want: usize, ends: Vec<TaskSettlement>) -> TaskPollCommand {
        TaskPollCommand {
            queue: queue(),
            node: self.node.clone(),
            worker: Arc::clone(&self.id),
            poll_number: self.number.fetch_add(1, Ordering::SeqCst) + 1,
            max_runs: want,
            lease: LEASE,
            limits: self.limits,
            idle_timeout: SECOND * 8,
            can_stay_idle: false,
            dead_letter_limits: self.graves,
            settlements: ends,
        }
    }

    pub(super) async fn take(&self, turn: TaskPollCommand) -> TaskPollOutcome {
        self.rig.backend().poll_tasks(turn).await.unwrap()
    }

    /// Starts what is due.
    pub(super) async fn start(&self, want: usize) -> Vec<Run> {
        let turn = self.turn(want, Vec::new());
        let number = turn.poll_number;
        self.take(turn).await.started.into_iter().map(|run| self.run(run, number)).collect()
    }

    /// Starts the one that is due.
    pub(super) async fn one(&self) -> Run {
        let mut runs = self.start(1).await;
        assert_eq!(runs.len(), 1, "one is due");
        runs.remove(0)
    }

    pub(super) fn run(&self, run: StartedTask, number: u64) -> Run {
        let by = format!("{}.{number}", self.id).into();
        let record = TaskRecord::decode(&run.record).expect("it is ours");
        Run {
            token: RunToken { id: run.id, owner: by },
            attempt: run.attempt,
            payload: String::from_utf8(record.payload.to_vec()).unwrap(),
            unique: record.unique,
            bytes: run.record.len() as u64,
        }
    }

    /// Ends these, each alone; whether it stood.
    pub(super) async fn end(&self, run: &Run, verdict: TaskOutcome) -> bool {
        self.take(self.turn(0, vec![run.ended(verdict)])).await.settled == [true]
    }
}

/// A run under way.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) token: RunToken,
    pub(super) attempt: u32,
    pub(super) payload: String,
    pub(super) unique: Option<Arc<str>>,
    pub(super) bytes: u64,
}

impl Run {
    pub(super) fn ended(&self, verdict: TaskOutcome) -> TaskSettlement {
        let Self { token, unique, bytes, .. } = self.clone();
        TaskSettlement { run: token, record_bytes: bytes, unique_key: unique, outcome: verdict }
    }
}

pub(super) fn retry(delay: Duration) -> TaskOutcome {
    TaskOutcome::Retry { delay, fault: TaskFault::Failed, reason: "no luck".into() }
}

pub(super) fn dead(reason: &str) -> TaskOutcome {
    TaskOutcome::Dead { fault: TaskFault::Failed, reason: reason.into() }
}

pub(super) fn back() -> TaskOutcome {
    TaskOutcome::ReturnToQueue { delay: Duration::ZERO }
}

impl Rig {
    pub(super) async fn push(&self, call: TaskPushCommand) -> TaskId {
        let id = call.id.clone();
        assert_eq!(self.backend().push_task(call).await.unwrap(), TaskPushOutcome::Stored);
        id
    }

    pub(super) async fn pushed(&self, call: TaskPushCommand) -> TaskPushOutcome {
        self.backend().push_task(call).await.unwrap()
    }

    pub(super) async fn task(&self, id: &TaskId) -> Option<TaskView> {
        self.backend().task_view(queue(), id.clone()).await.unwrap()
    }

    pub(super) async fn numbers(&self) -> crate::store::QueueStats {
        self.backend().queue_stats(queue()).await.unwrap()
    }
}

pub(super) fn payloads(runs: &[Run]) -> Vec<&str> {
    runs.iter().map(|run| run.payload.as_str()).collect()
}

#[cfg(feature = "redis")]
impl Rig {
    /// One of the queue's keys is lost.
    pub(super) async fn vanish(&self, kind: &str) {
        let _: u64 = self.at_queue("DEL", kind, &[]).await;
    }

    /// Whether the queue has one of its keys.
    pub(super) async fn has(&self, kind: &str) -> bool {
        self.at_queue::<u64>("EXISTS", kind, &[]).await == 1
    }

    /// A plain command about one of the queue's keys.
    pub(super) async fn at_queue<T: redis::FromRedisValue>(
        &self,
        verb: &str,
        kind: &str,
        rest: &[&str],
    ) -> T {
        let queue = queue();
        let key = format!("{{{}}}:{kind}:{queue}", queue.shard());
        self.server().raw(verb, &key, rest).await
    }
}
