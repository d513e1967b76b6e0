//! A queue and its workers, for cases that control each poll.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::StoreHarness;
use crate::{
    key::Key,
    store::{
        backend::NodeId,
        tasks::{
            DeadLetterLimits, RunToken, StartedTask, TaskFault, TaskId, TaskOutcome,
            TaskPollCommand, TaskPollOutcome, TaskPushCommand, TaskPushOutcome, TaskRecord,
            TaskRunLimits, TaskSettlement, TaskView, UniqueKey,
        },
        wakeup_listeners::WakeupListeners,
    },
};

pub(super) const RUN_LEASE: Duration = Duration::from_secs(60);
pub(super) const DEAD_LETTER_RETENTION: Duration = Duration::from_secs(3600);
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn test_queue() -> Key {
    Key::custom("emails")
}

/// A task that is due at once.
pub(super) fn push_command(payload: &str) -> TaskPushCommand {
    TaskPushCommand {
        queue: test_queue(),
        id: TaskId::new(),
        delay: Duration::ZERO,
        unique: None,
        retry_after_crash: true,
        max_attempts: 3,
        trace: None,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        capacity: (1000, 1 << 20),
    }
}

pub(super) fn delayed_push_command(payload: &str, delay: Duration) -> TaskPushCommand {
    TaskPushCommand { delay, ..push_command(payload) }
}

pub(super) fn unique_push_command(
    payload: &str,
    key: &str,
    window: Option<Duration>,
) -> TaskPushCommand {
    TaskPushCommand {
        unique: Some(UniqueKey { name: Key::custom(key), window }),
        ..push_command(payload)
    }
}

/// A worker that numbers its polls.
pub(super) struct PollingWorker<'a> {
    pub(super) harness: &'a StoreHarness,
    pub(super) node: NodeId,
    pub(super) worker_id: Arc<str>,
    pub(super) last_poll_number: AtomicU64,
    /// Listeners of this worker.
    pub(super) wakeups: Arc<WakeupListeners>,
    pub(super) task_wakeup: Arc<Notify>,
    pub(super) run_limits: TaskRunLimits,
    pub(super) dead_letter_limits: DeadLetterLimits,
}

impl<'a> PollingWorker<'a> {
    pub(super) fn new(rig: &'a StoreHarness) -> Self {
        let (node, wakeups) = (NodeId::new(), Arc::new(WakeupListeners::default()));
        let worker_id = node.as_str().into();
        let task_wakeup = wakeups.subscribe_tasks(&worker_id);
        let dead_letter_limits = DeadLetterLimits {
            retention: DEAD_LETTER_RETENTION,
            max_count: 100,
            max_bytes: 1 << 20,
            max_crashes: 2,
        };
        let (last_poll_number, run_limits) = (AtomicU64::new(0), TaskRunLimits::default());
        Self {
            harness: rig,
            node,
            worker_id,
            last_poll_number,
            wakeups,
            task_wakeup,
            run_limits,
            dead_letter_limits,
        }
    }

    /// Creates a worker that receives wake-ups.
    pub(super) async fn subscribed(rig: &'a StoreHarness) -> Self {
        let worker = Self::new(rig);
        rig.subscribe_node(&worker.node, &worker.wakeups).await;
        if rig.resyncs_on_subscribe() {
            worker.task_wakeup.notified().await;
        }
        worker
    }

    pub(super) fn poll_command(
        &self,
        max_runs: usize,
        settlements: Vec<TaskSettlement>,
    ) -> TaskPollCommand {
        TaskPollCommand {
            queue: test_queue(),
            node: self.node.clone(),
            worker: Arc::clone(&self.worker_id),
            poll_number: self.last_poll_number.fetch_add(1, Ordering::SeqCst) + 1,
            max_runs,
            lease: RUN_LEASE,
            limits: self.run_limits,
            idle_timeout: SECOND * 8,
            can_stay_idle: false,
            dead_letter_limits: self.dead_letter_limits,
            settlements,
        }
    }

    pub(super) async fn poll_tasks(&self, command: TaskPollCommand) -> TaskPollOutcome {
        self.harness.backend().poll_tasks(command).await.unwrap()
    }

    /// Starts due tasks.
    pub(super) async fn start_runs(&self, max_runs: usize) -> Vec<TaskRunHandle> {
        let command = self.poll_command(max_runs, Vec::new());
        let poll_number = command.poll_number;
        self.poll_tasks(command)
            .await
            .started
            .into_iter()
            .map(|run| self.decode_run(run, poll_number))
            .collect()
    }

    /// Starts the only due task.
    pub(super) async fn start_one(&self) -> TaskRunHandle {
        let mut runs = self.start_runs(1).await;
        assert_eq!(runs.len(), 1, "one is due");
        runs.remove(0)
    }

    pub(super) fn decode_run(&self, run: StartedTask, poll_number: u64) -> TaskRunHandle {
        let owner = format!("{}.{poll_number}", self.worker_id).into();
        let record = TaskRecord::decode(&run.record).expect("the record is valid");
        TaskRunHandle {
            token: RunToken { id: run.id, owner },
            attempt: run.attempt,
            payload: String::from_utf8(record.payload.to_vec()).unwrap(),
            unique_key: record.unique,
            record_bytes: run.record.len() as u64,
        }
    }

    /// Settles one run. Returns true if the settlement stood.
    pub(super) async fn settle_run(&self, run: &TaskRunHandle, outcome: TaskOutcome) -> bool {
        self.poll_tasks(self.poll_command(0, vec![run.settlement_with(outcome)])).await.settled
            == [true]
    }
}

/// A run in progress.
#[derive(Clone, Debug)]
pub(super) struct TaskRunHandle {
    pub(super) token: RunToken,
    pub(super) attempt: u32,
    pub(super) payload: String,
    pub(super) unique_key: Option<Arc<str>>,
    pub(super) record_bytes: u64,
}

impl TaskRunHandle {
    pub(super) fn settlement_with(&self, outcome: TaskOutcome) -> TaskSettlement {
        let Self { token, unique_key, record_bytes, .. } = self.clone();
        TaskSettlement { run: token, record_bytes, unique_key, outcome }
    }
}

pub(super) fn retry_outcome(delay: Duration) -> TaskOutcome {
    TaskOutcome::Retry { delay, fault: TaskFault::Failed, reason: "no luck".into() }
}

pub(super) fn dead_outcome(reason: &str) -> TaskOutcome {
    TaskOutcome::Dead { fault: TaskFault::Failed, reason: reason.into() }
}

pub(super) fn return_outcome() -> TaskOutcome {
    TaskOutcome::ReturnToQueue { delay: Duration::ZERO }
}

impl StoreHarness {
    pub(super) async fn push_task(&self, call: TaskPushCommand) -> TaskId {
        let id = call.id.clone();
        assert_eq!(self.backend().push_task(call).await.unwrap(), TaskPushOutcome::Stored);
        id
    }

    pub(super) async fn try_push_task(&self, call: TaskPushCommand) -> TaskPushOutcome {
        self.backend().push_task(call).await.unwrap()
    }

    pub(super) async fn task_view(&self, id: &TaskId) -> Option<TaskView> {
        self.backend().task_view(test_queue(), id.clone()).await.unwrap()
    }

    pub(super) async fn queue_stats(&self) -> crate::store::QueueStats {
        self.backend().queue_stats(test_queue()).await.unwrap()
    }
}

pub(super) fn run_payloads(runs: &[TaskRunHandle]) -> Vec<&str> {
    runs.iter().map(|run| run.payload.as_str()).collect()
}

#[cfg(feature = "redis")]
impl StoreHarness {
    /// Deletes one of the queue's keys.
    pub(super) async fn delete_queue_key(&self, kind: &str) {
        let _: u64 = self.queue_key_command("DEL", kind, &[]).await;
    }

    /// Returns true if the queue has one of its keys.
    pub(super) async fn has_queue_key(&self, kind: &str) -> bool {
        self.queue_key_command::<u64>("EXISTS", kind, &[]).await == 1
    }

    /// Sends a plain command about one of the queue's keys.
    pub(super) async fn queue_key_command<T: redis::FromRedisValue>(
        &self,
        verb: &str,
        kind: &str,
        args: &[&str],
    ) -> T {
        let queue = test_queue();
        let key = format!("{{{}}}:{kind}:{queue}", queue.shard());
        self.server().key_command(verb, &key, args).await
    }
}
