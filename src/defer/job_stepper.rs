//! A worker that runs what is due when it is told to, in the caller's own task: for tests.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::{
    job_chain::{JobChain, ShutdownPhase},
    replayer::{ReplayOutcome, Replayer},
    run_slots::RunSlots,
    worker::DeferWorker,
};
use crate::{
    clock::MAX_DURATION,
    error::Error,
    gate::{HttpRequestHead, ReplayMarker},
    key::{Key, SHARD_COUNT},
    store::{Heartbeat, JobId, WakeupMessage},
};

/// Passes over everything that is due, after the last one that ran something: a line may need one to be
/// cleared of what has ended.
const IDLE_PASSES: usize = 3;

/// Most passes of one call: jobs that make jobs without end are a fault of the test.
const MAX_PASSES: usize = 10_000;

/// One run of a deferred request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRunReport {
    /// The job.
    pub id: JobId,
    /// Which of its runs it was, from 1.
    pub attempt: u32,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// What the routes answered; `None` if they panicked or failed.
    pub status: Option<u16>,
}

pub(crate) struct JobStepper {
    worker: Arc<DeferWorker>,
    wakeups: mpsc::UnboundedReceiver<WakeupMessage>,
    run_log: RunLog,
    /// Never sent: nothing is told to stop.
    shutdown: watch::Sender<ShutdownPhase>,
    /// Most of one call.
    pub(super) max_passes: usize,
}

type RunLog = Arc<Mutex<Vec<JobRunReport>>>;

impl JobStepper {
    pub(crate) fn new(mut worker: DeferWorker) -> Self {
        let ran = RunLog::default();
        worker.replayer = Arc::new(RecordingReplayer {
            inner: Arc::clone(&worker.replayer),
            run_log: Arc::clone(&ran),
        });
        // Its clock stands still meanwhile: who waited for leave would wait for ever.
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

    /// Counts as a live worker that watches everything, as long as no clock runs for a year.
    pub(crate) async fn send_heartbeat(&self) -> Result<Heartbeat, Error> {
        let store = &self.worker.store;
        store.backend().heartbeat(store.node().clone(), MAX_DURATION).await
    }

    /// Runs everything that is due, one after the other, until nothing is; nothing while the queue is paused.
    #[expect(clippy::panic, reason = "a test that would go on for ever is to fail")]
    pub(crate) async fn run_due(&mut self) -> Result<Vec<JobRunReport>, Error> {
        if self.send_heartbeat().await?.is_paused {
            return Ok(Vec::new());
        }
        let mut idle = 0;
        for _ in 0..self.max_passes {
            // A lock that a test has just dropped is given back in the background.
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
            "TestWorker::run_due: {passes} passes, and each has run something; do jobs make jobs without end?"
        );
    }

    /// Lines that are worth a visit now, in the order of their names.
    async fn due_locks(&mut self) -> Result<BTreeMap<Key, Option<JobId>>, Error> {
        let mut lines = BTreeMap::new();
        for due in self.worker.store.backend().poll_due((0..SHARD_COUNT).collect(), 100).await? {
            lines.extend(due.locks);
        }
        // What was offered is not due before the offer has lapsed.
        while let Ok(hint) = self.wakeups.try_recv() {
            if let WakeupMessage::JobOffer(key, head) = hint {
                lines.insert(key, Some(head));
            }
        }
        Ok(lines)
    }
}

/// Writes down what runs.
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
