//! Process that pushes or runs jobs through one library.
//!
//! Both roles send `ready` and wait for the start time. The rest of the protocol:
//!
//! - `Push`: sends its [`PushReport`]. On the next command, unblocks the jobs and sends `ended`.
//! - `Run`: sends `done` when all jobs ran or none started for `idle_timeout`. On the next command,
//!   which follows when all runs are settled, sends its run report.

use std::{
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    QueueContender, QueueVisitor, dispatch_queue,
    queue_plan::{ProcessRole, PushReport, QueuePlan},
    run_recorder::RunRecorder,
};
use crate::{
    bench_result::BenchResult,
    clock,
    lock_worker::worker_runtime,
    runner_commands::{RunnerCommands, send_line},
    stats::{nanos_to_millis, per_mille_value},
};

/// Longer than any load, so that it ends only a process that hangs.
const MAX_RUN_TIME: Duration = Duration::from_secs(900);

/// Interval of the test whether all jobs ran.
const PROGRESS_POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(crate) fn main(plan: &str) -> BenchResult<()> {
    let plan: QueuePlan = serde_json::from_str(plan)?;
    dispatch_queue(plan.kind, QueueProcess { plan })
}

struct QueueProcess {
    plan: QueuePlan,
}

impl QueueVisitor for QueueProcess {
    fn run_with<Q: QueueContender>(self) -> BenchResult<()> {
        let commands = RunnerCommands::listen(self.plan.kind, MAX_RUN_TIME);
        let runtime = worker_runtime()?;
        match self.plan.role {
            ProcessRole::Push => {
                let queue = Arc::new(runtime.block_on(Q::connect_producer(&self.plan))?);
                let start = commands.await_start()?;
                let report = runtime.block_on(run_producers(&queue, &self.plan, start))?;
                send_line(&serde_json::to_string(&report)?)?;
                commands.next_command()?;
                runtime.block_on(queue.unblock_jobs())?;
                send_line("ended")?;
            }
            ProcessRole::Run => {
                let QueuePlan { jobs, body_bytes, record_times, idle_timeout, .. } = self.plan;
                let recorder = Arc::new(RunRecorder::new(jobs, body_bytes, record_times));
                let worker =
                    runtime.block_on(Q::start_worker(&self.plan, Arc::clone(&recorder)))?;
                commands.await_start()?;
                runtime.block_on(wait_for_runs(&recorder, jobs, idle_timeout));
                send_line("done")?;
                commands.next_command()?;
                send_line(&serde_json::to_string(&recorder.report())?)?;
                drop(worker);
            }
        }
        // Waits until the runner ends this process, since a clean shutdown is not measured.
        commands.next_command()?;
        process::exit(0)
    }
}

/// Waits until all jobs ran, or none started for `idle_timeout` nanoseconds.
async fn wait_for_runs(recorder: &RunRecorder, jobs: u64, idle_timeout: u64) {
    let (mut progress, mut progress_at) = (0, clock::now());
    while progress < jobs && clock::now() < progress_at + idle_timeout {
        tokio::time::sleep(PROGRESS_POLL_INTERVAL).await;
        let run_count = recorder.distinct_run_count();
        if run_count != progress {
            (progress, progress_at) = (run_count, clock::now());
        }
    }
}

/// State that the producer tasks of a process share.
struct PushLoad<Q> {
    queue: Arc<Q>,
    plan: QueuePlan,
    start: u64,
    end: u64,
    /// First job that no producer has claimed.
    next_job: AtomicU64,
    results: Mutex<(PushReport, Vec<u64>)>,
}

async fn run_producers<Q: QueueContender>(
    queue: &Arc<Q>,
    plan: &QueuePlan,
    start: u64,
) -> BenchResult<PushReport> {
    let end = if plan.jobs == 0 { start + plan.window } else { u64::MAX };
    let began = clock::now();
    let shared = Arc::new(PushLoad {
        queue: Arc::clone(queue),
        plan: plan.clone(),
        start,
        end,
        next_job: AtomicU64::new(0),
        results: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..plan.concurrency {
        tasks.spawn(Arc::clone(&shared).run_producer());
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    let ended = clock::now();
    let (mut report, mut latencies) = shared.take_results();
    latencies.sort_unstable();
    report.p50 = nanos_to_millis(per_mille_value(&latencies, 500));
    report.p99 = nanos_to_millis(per_mille_value(&latencies, 990));
    (report.began, report.ended) = (began, ended);
    Ok(report)
}

impl<Q: QueueContender> PushLoad<Q> {
    fn take_results(&self) -> (PushReport, Vec<u64>) {
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pushes in a closed loop until no jobs or no time remain. Records locally and merges once, to
    /// keep the producers independent.
    async fn run_producer(self: Arc<Self>) {
        let (mut report, mut latencies, mut push_times) =
            (PushReport::default(), Vec::new(), Vec::new());
        while let Some((job, size)) = self.claim_jobs() {
            let pushed_at = clock::now();
            let result = match size {
                1 => self.queue.push(job).await,
                _ => self.queue.push_batch(job..job + size).await,
            };
            let answered_at = clock::now();
            match result {
                Ok(push_time) => {
                    push_times.push((job, push_time.unwrap_or(pushed_at)));
                    report.pushed += size;
                    if pushed_at >= self.start && answered_at < self.end {
                        report.counted += size;
                        latencies.push(answered_at - pushed_at);
                    }
                }
                Err(error) => {
                    report.failed += size;
                    report.first_failure.get_or_insert_with(|| error.to_string());
                }
            }
            if self.plan.pause > 0 {
                tokio::time::sleep(Duration::from_nanos(self.plan.pause)).await;
            }
        }
        self.merge_results(report, latencies, &push_times);
    }

    fn claim_jobs(&self) -> Option<(u64, u64)> {
        if clock::now() >= self.end {
            return None;
        }
        let job = self.next_job.fetch_add(self.plan.batch_size, Relaxed);
        match self.plan.jobs {
            0 => Some((job, self.plan.batch_size)),
            jobs => (job < jobs).then(|| (job, self.plan.batch_size.min(jobs - job))),
        }
    }

    fn merge_results(&self, own: PushReport, own_latencies: Vec<u64>, push_times: &[(u64, u64)]) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, latencies) = &mut *results;
        total.pushed += own.pushed;
        total.counted += own.counted;
        total.failed += own.failed;
        total.first_failure = total.first_failure.take().or(own.first_failure);
        latencies.extend(own_latencies);
        if self.plan.record_times {
            total.push_times.resize(usize::try_from(self.plan.jobs).unwrap_or(0), 0);
            for (job, push_time) in push_times {
                let entry =
                    usize::try_from(*job).ok().and_then(|job| total.push_times.get_mut(job));
                if let Some(entry) = entry {
                    *entry = *push_time;
                }
            }
        }
    }
}
