//! Runner of the figures of deferral: the Redis server, the processes and the loads.

use std::{thread, time::Duration};

use crate::{
    bench_args::MeasurementSettings,
    bench_process::BenchProcess,
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    clock,
    queue::{JobCounts, NodeRunner, PushReport, QueueKind, QueuePlan, count_jobs},
};

/// Warm-up of all contenders. Node needs that long to compile hot code.
const QUEUE_WARMUP: Duration = Duration::from_secs(1);

/// Limit of the wait until all runs are settled.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sizes of the loads, smaller with `--quick`.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadSizes {
    /// Jobs pushed before the first one runs.
    pub(super) backlog: u64,
    /// Jobs of one latency figure.
    pub(super) latency_samples: u64,
    /// Figure 3: jobs on one resource, and jobs on a tenth as many resources.
    pub(super) one_resource_backlog: u64,
    pub(super) many_resources_backlog: u64,
    /// Figure 4.
    pub(super) stored_jobs: u64,
    pub(super) idle_window: Duration,
}

const FULL_SIZES: LoadSizes = LoadSizes {
    backlog: 50_000,
    latency_samples: 101,
    one_resource_backlog: 100_000,
    many_resources_backlog: 1_000_000,
    stored_jobs: 100_000,
    idle_window: Duration::from_secs(20),
};

const QUICK_SIZES: LoadSizes = LoadSizes {
    backlog: 3_000,
    latency_samples: 25,
    one_resource_backlog: 10_000,
    many_resources_backlog: 100_000,
    stored_jobs: 10_000,
    idle_window: Duration::from_secs(3),
};

pub(crate) struct QueueBench {
    pub(crate) runner: BenchRunner,
    pub(super) sizes: LoadSizes,
    node_runner: Result<NodeRunner, String>,
}

impl QueueBench {
    pub(crate) fn start(settings: MeasurementSettings, quick: bool) -> BenchResult<Self> {
        let (sizes, warmup) =
            if quick { (QUICK_SIZES, settings.warmup) } else { (FULL_SIZES, QUEUE_WARMUP) };
        let runner = BenchRunner::start(MeasurementSettings { warmup, ..settings })?;
        let node_runner = NodeRunner::prepare();
        if let Err(message) = &node_runner {
            println!("NOT RUN: npm's queues: {message}");
        }
        Ok(Self { runner, sizes, node_runner })
    }

    pub(super) fn start_process(&self, plan: &QueuePlan) -> BenchResult<BenchProcess> {
        match (plan.kind.node_script(), &self.node_runner) {
            (None, _) => BenchProcess::start("queue", plan),
            (Some(script), Ok(node)) => node.start(script, plan),
            (Some(_), Err(message)) => Err(message.clone().into()),
        }
    }

    /// Pushes a known number of jobs with a process, and waits until it has unblocked them.
    pub(super) fn push_jobs(&mut self, plan: &QueuePlan) -> BenchResult<PushReport> {
        let mut process = self.start_process(plan)?;
        process.wait_until_ready()?;
        process.write_line(&clock::now().to_string())?;
        let report = process.read_json()?;
        process.write_line("end")?;
        match process.read_line()?.as_str() {
            "ended" => Ok(report),
            other => Err(format!("a producer sent `{other}` instead of `ended`").into()),
        }
    }

    /// Returns the counts of jobs once none waits or runs, or after `SETTLE_TIMEOUT`.
    pub(super) fn wait_until_settled(&mut self, kind: QueueKind) -> BenchResult<JobCounts> {
        let deadline = clock::now() + clock::duration_nanos(SETTLE_TIMEOUT);
        loop {
            let counts = count_jobs(&mut self.runner.server, kind)?;
            if counts.is_settled() || clock::now() > deadline {
                return Ok(counts);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Reports that a contender is left out of a load. Other loads are not affected.
    pub(super) fn report_skipped(&mut self, kind: QueueKind, reason: &str) {
        println!("  NOT RUN: {kind}: {reason}");
        if kind.is_lockgate() {
            self.runner.failures.push(format!("{kind} did not run: {reason}"));
        }
    }

    pub(super) fn is_available(&self, kind: QueueKind) -> bool {
        kind.node_script().is_none() || self.node_runner.is_ok()
    }
}
