//! Measured queues behind one interface, with one module per library that only calls its API. The
//! npm queues are scripts that read the same plan.

#[cfg(feature = "queue-apalis")]
mod apalis;
#[cfg(feature = "queue-bullmq")]
mod bullmq;
mod deferred_requests;
mod job_counts;
mod node_runner;
mod peer_settings;
mod queue_plan;
mod queue_process;
mod run_recorder;
mod step_executor;
mod task_queue;

use std::{fmt, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use self::run_recorder::RunRecorder;
pub(crate) use self::{
    job_counts::{JobCounts, count_jobs},
    node_runner::NodeRunner,
    peer_settings::PeerSettings,
    queue_plan::{PushReport, QueuePlan, RunReport},
    queue_process::main,
    step_executor::{StepCommand, StepResult, StepperArgs, main as run_step_executor},
};
use crate::bench_result::BenchResult;

/// Name of the queue, for libraries with named queues.
const QUEUE_NAME: &str = "bench";

/// Queue library as its users see it.
pub(crate) trait QueueContender: Sized + Send + Sync + 'static {
    /// Value that must live while jobs run.
    type WorkerHandle;

    /// Connects in a process with the role `Push`.
    fn connect_producer(plan: &QueuePlan) -> impl Future<Output = BenchResult<Self>> + Send;
    /// Pushes a job. Returns the time from which its start latency counts, or `None` for the time
    /// of this call.
    fn push(&self, job: u64) -> impl Future<Output = BenchResult<Option<u64>>> + Send;
    /// Like [`push`](Self::push) for several jobs in one call. Fails if the library has no such
    /// call.
    fn push_batch(&self, jobs: Range<u64>)
    -> impl Future<Output = BenchResult<Option<u64>>> + Send;
    /// Lets the pushed jobs run, if the producer blocks them.
    fn unblock_jobs(&self) -> impl Future<Output = BenchResult<()>> + Send {
        async { Ok(()) }
    }
    /// Starts a worker and returns when it is ready for jobs.
    fn start_worker(
        plan: &QueuePlan,
        recorder: Arc<RunRecorder>,
    ) -> impl Future<Output = BenchResult<Self::WorkerHandle>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueueKind {
    /// Tasks of `store.queue`, comparable with the jobs of the peers.
    Tasks,
    /// Requests that `DeferLayer` always defers, which leaves out the cost of a busy lock.
    Requests,
    /// Requests that `DeferLayer` defers because their lock is busy.
    BlockedRequests,
    BullmqRust,
    ApalisRedis,
    BullmqNode,
    BeeQueue,
}

impl QueueKind {
    pub(crate) const PEERS: [Self; 4] =
        [Self::BullmqRust, Self::ApalisRedis, Self::BullmqNode, Self::BeeQueue];
    pub(crate) const LOCKGATE: [Self; 2] = [Self::Tasks, Self::Requests];

    pub(crate) fn is_lockgate(self) -> bool {
        self == Self::BlockedRequests || Self::LOCKGATE.contains(&self)
    }

    /// Returns the script of an npm queue.
    pub(crate) fn node_script(self) -> Option<&'static str> {
        match self {
            Self::BullmqNode => Some("bullmq.mjs"),
            Self::BeeQueue => Some("bee-queue.mjs"),
            _ => None,
        }
    }

    /// Returns the size of the longest backlog that the queue can run, at most `wanted`.
    pub(crate) fn max_backlog(self, wanted: u64) -> u64 {
        match self {
            // Its script unpacks all due jobs at once and fails from about 8,000 jobs on.
            Self::ApalisRedis => wanted.min(7_000),
            _ => wanted,
        }
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tasks => "store.queue",
            Self::Requests => "deferred requests",
            Self::BlockedRequests => "requests with a busy lock",
            Self::BullmqRust => "bullmq-official",
            Self::ApalisRedis => "apalis-redis",
            Self::BullmqNode => "bullmq (node)",
            Self::BeeQueue => "bee-queue (node)",
        })
    }
}

/// Function that is generic over the type of a queue.
trait QueueVisitor {
    fn run_with<Q: QueueContender>(self) -> BenchResult<()>;
}

fn dispatch_queue(kind: QueueKind, visitor: impl QueueVisitor) -> BenchResult<()> {
    match kind {
        QueueKind::Tasks => visitor.run_with::<task_queue::TaskQueue>(),
        QueueKind::Requests | QueueKind::BlockedRequests => {
            visitor.run_with::<deferred_requests::DeferredRequests>()
        }
        #[cfg(feature = "queue-bullmq")]
        QueueKind::BullmqRust => visitor.run_with::<bullmq::BullmqQueue>(),
        #[cfg(feature = "queue-apalis")]
        QueueKind::ApalisRedis => visitor.run_with::<apalis::ApalisQueue>(),
        missing => Err(format!("{missing} is not in this build").into()),
    }
}
