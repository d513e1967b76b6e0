//! Figure 3: cost of a job in a long queue, compared with a short one.

use std::collections::BTreeMap;

use super::{
    queue_bench::QueueBench,
    script_times::{self, ScriptNames, ScriptTimes},
    step_process::StepProcess,
};
use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    clock,
    queue::{JobCounts, QueueKind, StepCommand, count_jobs},
    report,
    stats::{median, paired_ratios, to_f64},
};

/// Jobs of the short queue of one resource.
const SHORT_BACKLOG: u64 = 10;

/// Jobs whose claim and settlement are measured, on one resource and on many.
const COUNTED_JOBS: u64 = 2_000;

/// Jobs on each of many resources.
const JOBS_PER_RESOURCE: u64 = 10;

/// Jobs of the small load on many resources.
const FEW_JOBS: u64 = 1_000;

/// Concurrency of the worker on many resources.
const CONCURRENT_RUNS: u64 = 16;

/// Target of the p99.9 of every script, in microseconds.
const MAX_SCRIPT_MICROS: f64 = 5_000.0;

/// Script time in Redis and wall time per job, in microseconds.
#[derive(Debug, Clone, Copy)]
struct JobCost {
    redis_micros: f64,
    wall_micros: f64,
}

impl StepProcess {
    /// Executes a step and returns its cost per job.
    fn measure_cost(
        &mut self,
        bench: &mut QueueBench,
        command: StepCommand,
        jobs: u64,
    ) -> BenchResult<JobCost> {
        let before = bench.runner.server.read_counters()?;
        let result = self.execute(command)?;
        let after = bench.runner.server.read_counters()?;
        // Only scripts are counted, because their time includes the commands that they call.
        let script_micros = |counts: &BTreeMap<String, u64>| {
            ["evalsha", "eval", "fcall"].iter().filter_map(|name| counts.get(*name)).sum::<u64>()
        };
        let micros = to_f64(script_micros(&after.micros) - script_micros(&before.micros));
        Ok(JobCost {
            redis_micros: micros / to_f64(jobs),
            wall_micros: to_f64(result.elapsed_nanos) / 1e3 / to_f64(jobs),
        })
    }
}

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let mut all_figures = Vec::new();
    for measure in [measure_one_resource, measure_many_resources] {
        match measure(bench) {
            Ok(figures) => all_figures.extend(figures),
            Err(error) => bench.report_skipped(QueueKind::Requests, &error.to_string()),
        }
    }
    Ok(all_figures)
}

fn ratio_figure(
    id: &'static str,
    description: String,
    max_ratio: f64,
    round_values: Vec<f64>,
) -> BenchFigure {
    BenchFigure {
        id,
        description,
        unit: "x",
        target: FigureTarget::AtMost(max_ratio),
        round_values,
    }
}

fn print_cost_table(rows: &[(String, Vec<JobCost>)]) {
    let header = ["median of the rounds", "Redis us/job", "wall us/job"].map(str::to_owned);
    let rows = rows.iter().map(|(name, costs)| {
        let cell = |value: fn(&JobCost) -> f64| {
            format_number(median(&costs.iter().map(value).collect::<Vec<_>>()))
        };
        vec![name.clone(), cell(|cost| cost.redis_micros), cell(|cost| cost.wall_micros)]
    });
    report::print_table(&[header.to_vec()].into_iter().chain(rows).collect::<Vec<_>>());
}

fn cost_ratios(own: &[JobCost], other: &[JobCost], value: fn(&JobCost) -> f64) -> Vec<f64> {
    let values = |costs: &[JobCost]| costs.iter().map(value).collect::<Vec<_>>();
    paired_ratios(&values(own), &values(other))
}

/// Measures one resource. The long queue is created once and partly run in each round; the short
/// queues are measured before it.
fn measure_one_resource(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let long_length = bench.sizes.one_resource_backlog;
    report::print_title(&format!(
        "3. Claim and settlement: {long_length} waiting on one resource, and {SHORT_BACKLOG}"
    ));
    let rounds = bench.runner.settings.rounds;
    let (mut short_costs, mut long_costs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        short_costs.push(measure_short_queues(bench)?);
    }
    let mut stepper = StepProcess::start(bench, long_length)?;
    stepper.execute(StepCommand::AcquireLocks { resources: 1 })?;
    stepper.execute(StepCommand::SendRequests { from: 0, to: long_length })?;
    wait_for_job_counts(bench, JobCounts { waiting: long_length, ..JobCounts::default() })?;
    stepper.execute(StepCommand::ReleaseLocks)?;
    stepper.execute(StepCommand::StartWorker { concurrency: 1, new_runs: 1 })?;
    let jobs_per_round = COUNTED_JOBS.min(long_length / 20);
    for round in 1..=rounds {
        long_costs.push(stepper.measure_cost(
            bench,
            StepCommand::FinishRuns { runs: jobs_per_round, last: false },
            jobs_per_round,
        )?);
        let done = jobs_per_round * u64::try_from(round)?;
        wait_for_job_counts(
            bench,
            JobCounts { waiting: long_length - done - 1, running: 1, done, other: 0 },
        )?;
    }
    print_cost_table(&[
        (format!("{SHORT_BACKLOG} waiting"), short_costs.clone()),
        (format!("{long_length} waiting"), long_costs.clone()),
    ]);
    let description = |cost: &str| {
        format!("claim and settlement, {cost}: {long_length} waiting / {SHORT_BACKLOG}")
    };
    Ok(vec![
        ratio_figure(
            "3a",
            description("Redis time"),
            1.2,
            cost_ratios(&long_costs, &short_costs, |cost| cost.redis_micros),
        ),
        ratio_figure(
            "3b",
            description("wall"),
            1.2,
            cost_ratios(&long_costs, &short_costs, |cost| cost.wall_micros),
        ),
    ])
}

/// Measures many short queues of one resource in succession. In each of them, it counts
/// `SHORT_BACKLOG` claims and settlements, without the release before them and the end after them.
fn measure_short_queues(bench: &mut QueueBench) -> BenchResult<JobCost> {
    let queue_count =
        (COUNTED_JOBS.min(bench.sizes.one_resource_backlog / 20) / SHORT_BACKLOG).max(1);
    let jobs = (SHORT_BACKLOG + 1) * queue_count;
    let mut stepper = StepProcess::start(bench, jobs)?;
    let mut sum = JobCost { redis_micros: 0.0, wall_micros: 0.0 };
    for queue in 0..queue_count {
        let from = queue * (SHORT_BACKLOG + 1);
        stepper.execute(StepCommand::AcquireLocks { resources: 1 })?;
        stepper.execute(StepCommand::SendRequests { from, to: from + SHORT_BACKLOG + 1 })?;
        stepper.execute(StepCommand::ReleaseLocks)?;
        stepper.execute(StepCommand::StartWorker { concurrency: 1, new_runs: 1 })?;
        let cost = stepper.measure_cost(
            bench,
            StepCommand::FinishRuns { runs: SHORT_BACKLOG, last: false },
            SHORT_BACKLOG,
        )?;
        stepper.execute(StepCommand::FinishRuns { runs: 1, last: true })?;
        sum = JobCost {
            redis_micros: sum.redis_micros + cost.redis_micros,
            wall_micros: sum.wall_micros + cost.wall_micros,
        };
    }
    let job_counts = bench.wait_until_settled(QueueKind::Requests)?;
    expect_job_counts(job_counts, JobCounts { done: jobs, ..JobCounts::default() })?;
    Ok(JobCost {
        redis_micros: sum.redis_micros / to_f64(queue_count),
        wall_micros: sum.wall_micros / to_f64(queue_count),
    })
}

/// Measures `JOBS_PER_RESOURCE` jobs on each of many resources, and of few. The large load is
/// created once.
fn measure_many_resources(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let large_count = bench.sizes.many_resources_backlog;
    report::print_title(&format!(
        "3. {large_count} waiting over {} resources, and {FEW_JOBS} over {}",
        large_count / JOBS_PER_RESOURCE,
        FEW_JOBS / JOBS_PER_RESOURCE
    ));
    let rounds = bench.runner.settings.rounds;
    let mut small = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // Half of the jobs. With fewer, not every concurrent run would find a resource of its own.
        let jobs_per_round = FEW_JOBS / 2;
        let mut costs = SpreadLoad { jobs: FEW_JOBS, rounds: 1, jobs_per_round, profiled_jobs: 0 }
            .measure_costs(bench, None)?;
        small.0.append(&mut costs.0);
        small.1.append(&mut costs.1);
    }
    let jobs_per_round = COUNTED_JOBS.min(large_count / 100);
    let names = observe_script_names(bench)?;
    let mut times = ScriptTimes::default();
    // One call handles several jobs, and p99.9 needs several thousand calls.
    let large_load =
        SpreadLoad { jobs: large_count, rounds, jobs_per_round, profiled_jobs: large_count / 50 };
    let large = large_load.measure_costs(bench, Some(&mut times))?;
    let slowest_micros = times.print_table(&names).into_iter().collect();
    print_cost_table(&[
        (format!("enqueue, {FEW_JOBS} waiting"), small.0.clone()),
        (format!("enqueue, {large_count} waiting"), large.0.clone()),
        (format!("claim and settlement, {FEW_JOBS} waiting"), small.1.clone()),
        (format!("claim and settlement, {large_count} waiting"), large.1.clone()),
    ]);
    let description = |operation: &str| format!("{operation}: {large_count} waiting / {FEW_JOBS}");
    let micros =
        |large: &[JobCost], small: &[JobCost]| cost_ratios(large, small, |cost| cost.redis_micros);
    let wall =
        |large: &[JobCost], small: &[JobCost]| cost_ratios(large, small, |cost| cost.wall_micros);
    Ok(vec![
        ratio_figure("3c", description("enqueue, Redis time"), 1.5, micros(&large.0, &small.0)),
        ratio_figure("3d", description("enqueue, wall"), 1.5, wall(&large.0, &small.0)),
        ratio_figure(
            "3e",
            description("claim and settlement, Redis time"),
            1.5,
            micros(&large.1, &small.1),
        ),
        ratio_figure(
            "3f",
            description("claim and settlement, wall"),
            1.5,
            wall(&large.1, &small.1),
        ),
        BenchFigure {
            id: "3g",
            description: format!("p99.9 of the slowest script, {large_count} waiting"),
            unit: "us",
            target: FigureTarget::AtMost(MAX_SCRIPT_MICROS),
            round_values: slowest_micros,
        },
    ])
}

/// Executes every step once, to observe all scripts.
fn observe_script_names(bench: &mut QueueBench) -> BenchResult<ScriptNames> {
    let mut stepper = StepProcess::start(bench, 2)?;
    script_times::observe_loaded_scripts(bench, |_| {
        stepper.execute(StepCommand::AcquireLocks { resources: 1 })?;
        stepper.execute(StepCommand::SendRequests { from: 0, to: 2 })?;
        stepper.execute(StepCommand::ReleaseLocks)?;
        stepper.execute(StepCommand::StartWorker { concurrency: 1, new_runs: 1 })?;
        stepper.execute(StepCommand::FinishRuns { runs: 1, last: false })?;
        stepper.execute(StepCommand::FinishRuns { runs: 1, last: true }).map(drop)
    })
}

/// Load of `JOBS_PER_RESOURCE` jobs on each of many resources.
#[derive(Debug, Clone, Copy)]
struct SpreadLoad {
    jobs: u64,
    rounds: usize,
    /// Jobs that are enqueued and claimed in each round.
    jobs_per_round: u64,
    /// Further jobs, for which the time of each script is recorded.
    profiled_jobs: u64,
}

impl SpreadLoad {
    /// Returns the costs per round of the last enqueues and of the first runs.
    fn measure_costs(
        self,
        bench: &mut QueueBench,
        times: Option<&mut ScriptTimes>,
    ) -> BenchResult<(Vec<JobCost>, Vec<JobCost>)> {
        let Self { jobs, rounds, jobs_per_round, profiled_jobs } = self;
        let measured_jobs = jobs_per_round * u64::try_from(rounds)?;
        let all_jobs = jobs + profiled_jobs;
        let mut stepper = StepProcess::start(bench, all_jobs)?;
        stepper.execute(StepCommand::AcquireLocks { resources: jobs / JOBS_PER_RESOURCE })?;
        stepper.execute(StepCommand::SendRequests { from: 0, to: jobs - measured_jobs })?;
        let (mut enqueues, mut claims) = (Vec::new(), Vec::new());
        for from in (jobs - measured_jobs..jobs).step_by(usize::try_from(jobs_per_round)?) {
            enqueues.push(stepper.measure_cost(
                bench,
                StepCommand::SendRequests { from, to: from + jobs_per_round },
                jobs_per_round,
            )?);
        }
        let mut unused_times = ScriptTimes::default();
        let times = times.unwrap_or(&mut unused_times);
        let send = StepCommand::SendRequests { from: jobs, to: all_jobs };
        times.record(bench, |_| stepper.execute(send).map(drop))?;
        wait_for_job_counts(bench, JobCounts { waiting: all_jobs, ..JobCounts::default() })?;
        stepper.execute(StepCommand::ReleaseLocks)?;
        let concurrency = usize::try_from(CONCURRENT_RUNS)?;
        stepper.execute(StepCommand::StartWorker { concurrency, new_runs: CONCURRENT_RUNS })?;
        for _ in 0..rounds {
            claims.push(stepper.measure_cost(
                bench,
                StepCommand::FinishRuns { runs: jobs_per_round, last: false },
                jobs_per_round,
            )?);
        }
        let runs = StepCommand::FinishRuns { runs: profiled_jobs, last: false };
        times.record(bench, |_| stepper.execute(runs).map(drop))?;
        let done = measured_jobs + profiled_jobs;
        wait_for_job_counts(
            bench,
            JobCounts {
                waiting: all_jobs - done - CONCURRENT_RUNS,
                running: CONCURRENT_RUNS,
                done,
                other: 0,
            },
        )?;
        Ok((enqueues, claims))
    }
}

/// Waits up to 2 s until the server has the expected counts, and fails otherwise.
fn wait_for_job_counts(bench: &mut QueueBench, expected: JobCounts) -> BenchResult<()> {
    let deadline = clock::now() + 2_000_000_000;
    loop {
        let counts = count_jobs(&mut bench.runner.server, QueueKind::Requests)?;
        if counts == expected || clock::now() > deadline {
            return expect_job_counts(counts, expected);
        }
    }
}

fn expect_job_counts(counts: JobCounts, expected: JobCounts) -> BenchResult<()> {
    if counts == expected {
        return Ok(());
    }
    Err(format!("the server has {counts:?} instead of {expected:?}").into())
}
