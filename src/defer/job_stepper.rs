//! `JobStepper`: a worker for tests that runs due jobs only when asked, in the caller's task.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::{
    job_chain::{JobChain, ShutdownPhase},
    replayer::{ReplayOutcome, ReplayResponse, Replayer},
    run_slots::RunSlots,
    worker::{DeferWorker, WorkerSettings},
};
use crate::{
    durations::MAX_DURATION,
    error::Error,
    gate::{HttpRequestHead, ReplayMarker},
    key::{Key, SHARD_COUNT},
    store::{HeartbeatReply, JobId, Store, WakeupMessage},
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
    /// Checks the wiring of the worker, as its `run` does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if it does not restore a snapshot of a layer.
    pub(crate) fn try_new<R>(worker: DeferWorker<R>) -> Result<Self, Error> {
        worker.settings.check_wiring()?;
        Ok(Self::new(worker))
    }

    pub(super) fn new<R>(worker: DeferWorker<R>) -> Self {
        let mut worker = worker.settings;
        let run_log = RunLog::default();
        worker.replayer = Arc::new(RecordingReplayer {
            inner: Arc::clone(&worker.replayer),
            run_log: Arc::clone(&run_log),
        });
        // The test's clock stands still during a call, so a wait for a permit would never end.
        worker.shared_limits.try_only = true;
        let wakeups = worker.store.wakeups().subscribe_work();
        Self {
            worker: Arc::new(worker),
            wakeups,
            run_log,
            shutdown: watch::Sender::new(ShutdownPhase::Running),
            max_passes: MAX_PASSES,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.worker.store
    }

    /// Registers the stepper as a live worker that owns every shard, until a clock has advanced by
    /// `MAX_DURATION`.
    pub(crate) async fn send_heartbeat(&self) -> Result<HeartbeatReply, Error> {
        let store = &self.worker.store;
        store.backend().heartbeat(store.node().clone(), MAX_DURATION).await
    }

    /// Runs all due jobs, one after the other, until none is due. Runs nothing while the queue is
    /// paused.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if a layer of the worker's store carries a snapshot
    /// that the worker does not restore, or if a due job did not run because it carries one.
    #[expect(clippy::panic, reason = "a test without an end must fail")]
    pub(crate) async fn run_due(&mut self) -> Result<Vec<JobRunReport>, Error> {
        // A layer may have met its store since the worker was created.
        self.worker.check_wiring()?;
        if self.send_heartbeat().await?.is_paused {
            return Ok(Vec::new());
        }
        let mut idle_passes = 0;
        for _ in 0..self.max_passes {
            // The release of a lock that the test has just dropped runs in the background.
            self.worker.store.agent().wait_until_drained().await;
            let due = self.due_locks().await?;
            let runs_before = self.run_log.lock().len();
            for (key, head) in due {
                let chain = JobChain {
                    worker: Arc::clone(&self.worker),
                    key,
                    slot: RunSlots::new(1).acquire(),
                    shutdown: self.shutdown.subscribe(),
                    contended: Arc::default(),
                    paused: Arc::default(),
                    webhook_receivers: Arc::default(),
                };
                chain.run(head).await;
            }
            let has_run = self.run_log.lock().len() > runs_before;
            idle_passes = if has_run { 0 } else { idle_passes + 1 };
            if idle_passes == IDLE_PASSES {
                self.check_snapshots()?;
                return Ok(std::mem::take(&mut *self.run_log.lock()));
            }
        }
        let passes = self.max_passes;
        panic!(
            "TestDeferWorker::run_due: jobs were still due after {passes} passes; check whether \
             jobs create jobs without end"
        );
    }

    fn check_snapshots(&self) -> Result<(), Error> {
        let Some(snapshot) = self.worker.unrestored_snapshot.lock().take() else { return Ok(()) };
        Err(Error::setting(format!(
            "TestDeferWorker::run_due: a due job carries the snapshot {snapshot:?}, which this \
             worker does not restore, so it did not run; add .for_user::<U>() to the worker, as to \
             the layer, or .restore_extension::<T>()"
        )))
    }

    /// Returns the locks with a runnable job, ordered by name.
    async fn due_locks(&mut self) -> Result<BTreeMap<Key, Option<JobId>>, Error> {
        let mut locks = BTreeMap::new();
        for due in self.worker.store.backend().poll_due((0..SHARD_COUNT).collect(), 100).await? {
            locks.extend(due.locks);
        }
        // An offered lock is not due before its offer times out.
        while let Ok(message) = self.wakeups.try_recv() {
            if let WakeupMessage::JobOffer(key, head) = message {
                locks.insert(key, Some(head));
            }
        }
        Ok(locks)
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
        let run_log = Arc::clone(&self.run_log);
        let run = self.inner.replay(head, body, marker, limit);
        let record = move |outcome: ReplayOutcome| {
            let status = match &outcome {
                ReplayOutcome::Answered(answer) => Some(answer.status),
                _ => None,
            };
            run_log.lock().push(JobRunReport { id, attempt, method, target, status });
            outcome
        };
        run.map(record).boxed()
    }

    fn missing_value(&self, response: &ReplayResponse) -> Option<&'static str> {
        self.inner.missing_value(response)
    }

    fn restores_snapshots(&self) -> bool {
        self.inner.restores_snapshots()
    }
}
