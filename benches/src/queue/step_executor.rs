//! Process that accepts, unblocks and runs deferred requests in separate steps, so that the runner
//! can count the work of the server in each step.
//!
//! A run starts and then waits for a permit to finish. [`StepCommand::FinishRuns`] grants n permits
//! and ends when n further runs have started. It therefore covers exactly n settlements and n
//! claims.

use std::{
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use super::{
    QueueContender as _, QueueKind,
    deferred_requests::DeferredRequests,
    queue_plan::{BODY_BYTES, QueuePlan},
    run_recorder::RunRecorder,
};
use crate::{
    bench_result::BenchResult,
    clock,
    lock_worker::worker_runtime,
    runner_commands::{RunnerCommands, send_line},
};

const MAX_RUN_TIME: Duration = Duration::from_secs(1800);

/// Number of requests in flight.
const CONCURRENT_REQUESTS: u64 = 32;

/// Step to execute, answered with a [`StepResult`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum StepCommand {
    /// Acquires the locks of this many resources.
    AcquireLocks { resources: u64 },
    /// Sends the requests with these numbers, which are divided among the resources.
    SendRequests { from: u64, to: u64 },
    /// Releases all locks.
    ReleaseLocks,
    /// Starts the worker if it does not run, and waits for this many further runs to start.
    StartWorker { concurrency: usize, new_runs: u64 },
    /// Lets this many runs finish. Unless they are the last, waits for as many further runs to
    /// start.
    FinishRuns { runs: u64, last: bool },
}

/// Result of a step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StepResult {
    pub(crate) elapsed_nanos: u64,
    /// Repeated runs of a job, and runs of an unknown body.
    pub(crate) wrong_runs: u64,
}

/// Recorder whose runs wait for a permit to finish.
#[derive(Debug)]
pub(super) struct RunBarrier {
    pub(super) recorder: RunRecorder,
    started_runs: AtomicU64,
    last_start: AtomicU64,
    finish_permits: Semaphore,
}

impl RunBarrier {
    pub(super) async fn wait_to_finish(&self, body: &[u8]) {
        self.recorder.record_raw_start(body);
        self.last_start.fetch_max(clock::now(), Relaxed);
        self.started_runs.fetch_add(1, Relaxed);
        if let Ok(permit) = self.finish_permits.acquire().await {
            permit.forget();
        }
    }

    async fn wait_for_starts(&self, runs: u64) -> BenchResult<()> {
        let deadline = clock::now() + clock::duration_nanos(Duration::from_secs(60));
        while self.started_runs.load(Relaxed) < runs {
            if clock::now() > deadline {
                let started = self.started_runs.load(Relaxed);
                return Err(format!("{started} runs started instead of {runs}").into());
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        Ok(())
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StepperArgs {
    pub(crate) port: u16,
    /// Number of all requests of the process.
    pub(crate) jobs: u64,
}

pub(crate) fn main(args: &str) -> BenchResult<()> {
    let StepperArgs { port, jobs } = serde_json::from_str(args)?;
    let commands = RunnerCommands::listen("deferred requests", MAX_RUN_TIME);
    let runtime = worker_runtime()?;
    let mut plan = QueuePlan::for_push(QueueKind::BlockedRequests, port, 1);
    plan.resource_count = 0;
    let mut executor = runtime.block_on(StepExecutor::new(plan, jobs))?;
    send_line("ready")?;
    while let Ok(command) = commands.next_command() {
        let start = clock::now();
        let end = runtime.block_on(executor.execute(serde_json::from_str(&command)?))?;
        let report = executor.barrier.recorder.report();
        let result = StepResult {
            elapsed_nanos: end.saturating_sub(start),
            wrong_runs: report.repeated_runs + report.unexpected_runs,
        };
        send_line(&serde_json::to_string(&result)?)?;
    }
    process::exit(0)
}

struct StepExecutor {
    plan: QueuePlan,
    requests: Arc<DeferredRequests>,
    barrier: Arc<RunBarrier>,
    worker: Option<JoinHandle<()>>,
    /// Number of runs that must have started by now.
    expected_starts: u64,
}

impl StepExecutor {
    async fn new(plan: QueuePlan, jobs: u64) -> BenchResult<Self> {
        let requests = Arc::new(DeferredRequests::connect_producer(&plan).await?);
        let barrier = RunBarrier {
            recorder: RunRecorder::new(jobs, BODY_BYTES, false),
            started_runs: AtomicU64::new(0),
            last_start: AtomicU64::new(0),
            finish_permits: Semaphore::new(0),
        };
        Ok(Self { plan, requests, barrier: Arc::new(barrier), worker: None, expected_starts: 0 })
    }

    /// Executes a step and returns the time of its end.
    async fn execute(&mut self, command: StepCommand) -> BenchResult<u64> {
        match command {
            StepCommand::AcquireLocks { resources } => {
                self.plan.resource_count = resources;
                self.requests = Arc::new(DeferredRequests::connect_producer(&self.plan).await?);
            }
            StepCommand::SendRequests { from, to } => self.send_requests(from, to).await?,
            StepCommand::ReleaseLocks => self.requests.unblock_jobs().await?,
            StepCommand::StartWorker { concurrency, new_runs } => {
                let plan = QueuePlan::for_run(
                    QueueKind::BlockedRequests,
                    self.plan.redis_port,
                    concurrency,
                    0,
                );
                if self.worker.is_none() {
                    let barrier = Arc::clone(&self.barrier);
                    self.worker =
                        Some(DeferredRequests::start_stepped_worker(&plan, barrier).await?);
                }
                self.expected_starts += new_runs;
                self.barrier.wait_for_starts(self.expected_starts).await?;
            }
            StepCommand::FinishRuns { runs, last } => {
                self.barrier.finish_permits.add_permits(usize::try_from(runs)?);
                if !last {
                    self.expected_starts += runs;
                    self.barrier.wait_for_starts(self.expected_starts).await?;
                    return Ok(self.barrier.last_start.load(Relaxed));
                }
            }
        }
        Ok(clock::now())
    }

    async fn send_requests(&self, from: u64, to: u64) -> BenchResult<()> {
        let next = Arc::new(AtomicU64::new(from));
        let first_failure: Arc<Mutex<Option<String>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for _ in 0..CONCURRENT_REQUESTS {
            let (next, first_failure) = (Arc::clone(&next), Arc::clone(&first_failure));
            let requests = Arc::clone(&self.requests);
            tasks.spawn(async move {
                loop {
                    let job = next.fetch_add(1, Relaxed);
                    if job >= to {
                        return;
                    }
                    if let Err(error) = requests.push(job).await {
                        let mut first_failure =
                            first_failure.lock().unwrap_or_else(PoisonError::into_inner);
                        first_failure.get_or_insert_with(|| error.to_string());
                        return;
                    }
                }
            });
        }
        tasks.join_all().await;
        match first_failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}
