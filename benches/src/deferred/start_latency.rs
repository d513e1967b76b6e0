//! Figure 1: time from the release, the push or the due time of a job to its start.

use std::{thread, time::Duration};

use super::{
    queue_bench::QueueBench,
    queue_comparison::{QueueColumn, QueueComparison, QueueMeasurement},
};
use crate::{
    bench_figure::{BenchFigure, FigureTarget},
    bench_result::BenchResult,
    clock,
    queue::{JobCounts, PushReport, QueueKind, QueuePlan, RunReport},
    report,
    stats::{nanos_to_millis, per_mille_value, to_f64},
};

/// Interval between pushes, after which the queue is idle again.
const PUSH_INTERVAL: Duration = Duration::from_millis(20);

const JOB_DELAY_MILLIS: u64 = 1_000;

/// Time after a worker reports that it is ready, in which some workers still register themselves.
const WORKER_STARTUP_TIME: Duration = Duration::from_millis(300);

const LATENCY_COLUMNS: [QueueColumn; 5] = [
    ("p50", |window| window.p50),
    ("p99", |window| window.p99),
    ("least", |window| window.shortest),
    ("longest", |window| window.longest),
    ("early", |window| window.early_starts),
];

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    report::print_title(
        "1. From the release of the lock to the start of the request that waited for it",
    );
    let after_release = QueueComparison::run(
        bench,
        &[QueueKind::BlockedRequests],
        &LATENCY_COLUMNS,
        |bench, kind| measure_latencies(bench, kind, 0),
    )?;
    let mut all_figures = latency_figures(
        &after_release,
        QueueKind::BlockedRequests,
        ["1a", "1b"],
        "release to start",
        [2.0, 10.0],
    );

    report::print_title("1. Idle queue: from the push to the start, one worker");
    let after_push =
        QueueComparison::run(bench, &all_queue_kinds(), &LATENCY_COLUMNS, |bench, kind| {
            measure_latencies(bench, kind, 0)
        })?;
    for (ids, kind) in [["1c", "1d"], ["1e", "1f"]].into_iter().zip(QueueKind::LOCKGATE) {
        all_figures.extend(latency_figures(&after_push, kind, ids, "push to start", [0.6, 1.5]));
    }

    report::print_title("1. Delayed by 1 s: from the due time to the start, one worker");
    let after_delay =
        QueueComparison::run(bench, &all_queue_kinds(), &LATENCY_COLUMNS, |bench, kind| {
            measure_latencies(bench, kind, JOB_DELAY_MILLIS)
        })?;
    for (ids, kind) in [["1g", "1h", "1i"], ["1j", "1k", "1l"]].into_iter().zip(QueueKind::LOCKGATE)
    {
        let [p50, p99, early] = ids;
        all_figures.extend(latency_figures(
            &after_delay,
            kind,
            [p50, p99],
            "delayed by 1 s, late",
            [2.0, 10.0],
        ));
        all_figures.push(BenchFigure {
            id: early,
            description: format!("{kind}: started early"),
            unit: "",
            target: FigureTarget::AtMost(0.0),
            round_values: after_delay.round_values(kind, |window| window.early_starts),
        });
    }
    Ok(all_figures)
}

type MeasurementValue = fn(&QueueMeasurement) -> f64;

fn all_queue_kinds() -> Vec<QueueKind> {
    QueueKind::LOCKGATE.into_iter().chain(QueueKind::PEERS).collect()
}

fn latency_figures(
    comparison: &QueueComparison,
    kind: QueueKind,
    ids: [&'static str; 2],
    interval: &str,
    targets: [f64; 2],
) -> Vec<BenchFigure> {
    let values: [(&str, MeasurementValue); 2] =
        [("p50", |window| window.p50), ("p99", |window| window.p99)];
    let numbered_values = ids.into_iter().zip(values).zip(targets);
    let figures = numbered_values.map(|((id, (name, value)), max_millis)| BenchFigure {
        id,
        description: format!("{kind}: {interval}, {name}"),
        unit: "ms",
        target: FigureTarget::AtMost(max_millis),
        round_values: comparison.round_values(kind, value),
    });
    figures.collect()
}

/// Measures start latencies. One process pushes jobs one at a time, and another runs them.
pub(super) fn measure_latencies(
    bench: &mut QueueBench,
    kind: QueueKind,
    delay: u64,
) -> BenchResult<QueueMeasurement> {
    let plan = QueuePlan { delay, ..QueuePlan::for_push(kind, bench.runner.server.port(), 1) };
    bench.runner.server.flush()?;
    let (port, jobs) = (plan.redis_port, bench.sizes.latency_samples);
    let run_plan = QueuePlan { record_times: true, ..QueuePlan::for_run(plan.kind, port, 1, jobs) };
    let mut worker = bench.start_process(&run_plan)?;
    worker.wait_until_ready()?;
    worker.write_line(&clock::now().to_string())?;
    thread::sleep(WORKER_STARTUP_TIME);
    let pause = clock::duration_nanos(PUSH_INTERVAL);
    let push_report = bench.push_jobs(&QueuePlan { jobs, pause, record_times: true, ..plan })?;
    if worker.read_line()? != "done" {
        return Err("the worker did not send `done`".into());
    }
    let job_counts = bench.wait_until_settled(plan.kind)?;
    worker.write_line("end")?;
    let run_report: RunReport = worker.read_json()?;
    let mut measurement = summarize_latencies(&push_report, &run_report, plan.delay);
    measurement.failure = find_run_failure(jobs, &push_report, &run_report, job_counts);
    Ok(measurement)
}

fn summarize_latencies(
    push_report: &PushReport,
    run_report: &RunReport,
    delay_millis: u64,
) -> QueueMeasurement {
    let delay = delay_millis * 1_000_000;
    let jobs = push_report.push_times.iter().zip(&run_report.start_times);
    let started_jobs = jobs.filter(|(_, start)| **start > 0);
    let due_and_start: Vec<(u64, u64)> =
        started_jobs.map(|(push, start)| (push + delay, *start)).collect();
    let early_count = due_and_start.iter().filter(|(due, start)| start < due).count();
    let mut latencies: Vec<u64> =
        due_and_start.iter().map(|(due, start)| start.saturating_sub(*due)).collect();
    latencies.sort_unstable();
    // Negative if a job started early.
    let shortest = due_and_start
        .iter()
        .map(|(due, start)| nanos_to_millis(*start) - nanos_to_millis(*due))
        .min_by(f64::total_cmp);
    QueueMeasurement {
        p50: nanos_to_millis(per_mille_value(&latencies, 500)),
        p99: nanos_to_millis(per_mille_value(&latencies, 990)),
        longest: nanos_to_millis(per_mille_value(&latencies, 1000)),
        shortest: shortest.unwrap_or(f64::NAN),
        early_starts: to_f64(u64::try_from(early_count).unwrap_or(u64::MAX)),
        ..QueueMeasurement::default()
    }
}

/// Checks that every job was pushed, ran once and is done. Returns the first mismatch.
pub(super) fn find_run_failure(
    jobs: u64,
    push_report: &PushReport,
    run_report: &RunReport,
    job_counts: JobCounts,
) -> Option<String> {
    if let Some(first_failure) = &push_report.first_failure {
        return Some(format!("{} pushes FAILED, the first: {first_failure}", push_report.failed));
    }
    let RunReport { distinct_runs, repeated_runs, unexpected_runs, .. } = *run_report;
    if push_report.pushed != jobs
        || distinct_runs != jobs
        || repeated_runs > 0
        || unexpected_runs > 0
    {
        let pushed_jobs = push_report.pushed;
        return Some(format!(
            "of {jobs} jobs {pushed_jobs} were pushed and {distinct_runs} ran; \
             {repeated_runs} runs were repeated, {unexpected_runs} were unexpected"
        ));
    }
    (job_counts != JobCounts { done: jobs, ..JobCounts::default() })
        .then(|| format!("all {jobs} jobs ran, but the server has {job_counts:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_measured_from_due_time() {
        let push_report =
            PushReport { push_times: vec![1_000_000, 2_000_000], ..PushReport::default() };
        let run_report =
            RunReport { start_times: vec![3_000_000, 2_500_000], ..RunReport::default() };
        let measurement = summarize_latencies(&push_report, &run_report, 0);
        assert_eq!([measurement.p50, measurement.p99, measurement.early_starts], [0.5, 2.0, 0.0]);
        let measurement = summarize_latencies(&push_report, &run_report, 1);
        assert_eq!(
            [measurement.p99, measurement.early_starts, measurement.shortest],
            [1.0, 1.0, -0.5]
        );
    }

    #[test]
    fn missing_repeated_or_unsettled_runs_are_failures() {
        let push_report = PushReport { pushed: 2, ..PushReport::default() };
        let run_report = RunReport { distinct_runs: 2, ..RunReport::default() };
        let job_counts = JobCounts { done: 2, ..JobCounts::default() };
        assert_eq!(find_run_failure(2, &push_report, &run_report, job_counts), None);
        assert!(
            find_run_failure(
                2,
                &push_report,
                &RunReport { repeated_runs: 1, ..run_report.clone() },
                job_counts
            )
            .is_some()
        );
        assert!(
            find_run_failure(
                2,
                &push_report,
                &RunReport { distinct_runs: 1, ..run_report.clone() },
                job_counts
            )
            .is_some()
        );
        assert!(
            find_run_failure(
                2,
                &push_report,
                &run_report,
                JobCounts { done: 1, running: 1, ..job_counts }
            )
            .is_some()
        );
        assert!(find_run_failure(3, &push_report, &run_report, job_counts).is_some());
    }
}
