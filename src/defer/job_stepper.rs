//! Stepper for tests: a worker that runs due jobs only when asked, in the caller's task.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::{
    job_chain::{JobChain, ShutdownPhase},
    replayer::{ReplayOutcome, Replayer},
    run_slots::RunSlots,
    worker::{DeferWorker, WorkerSettings},
};
use crate::{
    clock::MAX_DURATION,
    error::Error,
    gate::{HttpRequestHead, ReplayMarker},
    key::{Key, SHARD_COUNT},
    store::{Heartbeat, JobId, WakeupMessage},
};

/// Passes over all due locks without a run before `run_due` returns. A queue may need a pass that
/// only removes ended jobs.
const IDLE_PASSES: usize = 3;

/// Most passes of one call. A test in which jobs create jobs endlessly is at fault.
const MAX_PASSES: usize = 10_000;

/// One run of a deferred request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRunReport {
    /// Id of the job.
    pub id: JobId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Method of the request.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Status of the response; `None` if the routes panicked or failed.
    pub status: Option<u16>,
}

pub(crate) struct JobStepper {
    worker: Arc<WorkerSettings>,
    wakeups: mpsc::UnboundedReceiver<WakeupMessage>,
    run_log: RunLog,
    /// Never sent: a stepper has no shutdown.
    shutdown: watch::Sender<ShutdownPhase>,
    /// Limit of one call.
    pub(super) max_passes: usize,
}

type RunLog = Arc<Mutex<Vec<JobRunReport>>>;

impl JobStepper {
    pub(crate) fn new<R>(worker: DeferWorker<R>) -> Self {
        let mut worker = worker.settings;
        let ran = RunLog::default();
        worker.replayer = Arc::new(RecordingReplayer {
            inner: Arc::clone(&worker.replayer),
            run_log: Arc::clone(&ran),
        });
        // The test's clock stands still during a call, so a wait for a permit would never end.
        worker.shared_limits.try_only = true;
        let hints = worker.store.wakeups().subscribe_work();
        let (stop, passes) = (watch::Sender::new(ShutdownPhase::Running), MAX_PASSES);
        Self {
            worker: Arc::new(worker),
            wakeups: hints,
            run_log: ran,
            shutdown: stop,
            max_passes: passes,
        }
    }

    /// Registers the stepper as a live worker that owns every shard, until a clock has advanced by
    /// `MAX_DURATION`.
    pub(crate) async fn send_heartbeat(&self) -> Result<Heartbeat, Error> {
        let store = &self.worker.store;
        store.backend().heartbeat(store.node().clone(), MAX_DURATION).await
    }

    /// Runs all due jobs, one after the other, until none is due. Runs nothing while the queue is
    /// paused.
    #[expect(clippy::panic, reason = "a test without an end must fail")]
    pub(crate) async fn run_due(&mut self) -> Result<Vec<JobRunReport>, Error> {
        if self.send_heartbeat().await?.is_paused {
            return Ok(Vec::new());
        }
        let mut idle = 0;
        for _ in 0..self.max_passes {
            // The release of a lock that the test has just dropped runs in the background.
            self.worker.store.agent().wait_until_drained().await;
            let due = self.due_locks().await?;
            let before = self.run_log.lock().len();
            for (key, head) in due {
                let (worker, stop) = (Arc::clone(&self.worker), self.shutdown.subscribe());
                let (slot, crowded, paused, hosts) =
                    (RunSlots::new(1).acquire(), Arc::default(), Arc::default(), Arc::default());
                JobChain {
                    worker,
                    key,
                    slot,
                    shutdown: stop,
                    contended: crowded,
                    paused,
                    webhook_receivers: hosts,
                }
                .run(head)
                .await;
            }
            idle = if self.run_log.lock().len() == before { idle + 1 } else { 0 };
            if idle == IDLE_PASSES {
                return Ok(std::mem::take(&mut *self.run_log.lock()));
            }
        }
        let passes = self.max_passes;
        panic!(
            "TestDeferWorker::run_due: jobs were still due after {passes} passes; check whether \
             jobs create jobs without end"
        );
    }

    /// Returns the locks with a runnable job, ordered by name.
    async fn due_locks(&mut self) -> Result<BTreeMap<Key, Option<JobId>>, Error> {
        let mut lines = BTreeMap::new();
        for due in self.worker.store.backend().poll_due((0..SHARD_COUNT).collect(), 100).await? {
            lines.extend(due.locks);
        }
        // An offered lock is not due before its offer times out.
        while let Ok(hint) = self.wakeups.try_recv() {
            if let WakeupMessage::JobOffer(key, head) = hint {
                lines.insert(key, Some(head));
            }
        }
        Ok(lines)
    }
}

/// Replayer that records each run.
struct RecordingReplayer {
    inner: Arc<dyn Replayer>,
    run_log: RunLog,
}

impl Replayer for RecordingReplayer {
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        let job = marker.job();
        let (id, attempt) = (job.id.clone(), job.attempt);
        let (method, target) = (head.method.clone(), head.target.clone());
        let ran = Arc::clone(&self.run_log);
        let run = self.inner.replay(head, body, marker, limit);
        let note = move |ended: ReplayOutcome| {
            let status = match &ended {
                ReplayOutcome::Answered(answer) => Some(answer.status),
                _ => None,
            };
            ran.lock().push(JobRunReport { id, attempt, method, target, status });
            ended
        };
        run.map(note).boxed()
    }
}
