//! Figure 2: rates of pushing jobs, and of pushing, running and settling them.

use std::collections::BTreeMap;

use super::{
    queue_bench::QueueBench,
    queue_comparison::{QueueColumn, QueueComparison, QueueMeasurement},
    start_latency::find_run_failure,
};
use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    clock,
    queue::{JobCounts, PushReport, QueueKind, QueuePlan, RunReport},
    redis_server::ServerCounters,
    report,
    stats::{median, to_f64},
};

/// Number of resources among which requests are divided, larger than the concurrency.
const RESOURCE_COUNT: u64 = 1_000;

/// Producers of a backlog.
const PRODUCER_COUNT: usize = 32;

/// Core share of Redis from which Redis, and not the contender, limits the rate.
const BUSY_CORE_SHARE: f64 = 0.9;

const PUSH_COLUMNS: [QueueColumn; 6] = [
    ("pushed/s", |window| window.jobs_per_second),
    ("p50", |window| window.p50),
    ("p99", |window| window.p99),
    ("commands/job", |window| window.commands_per_job),
    ("Redis us/job", |window| window.redis_micros_per_job),
    ("Redis core", |window| window.redis_core_share),
];

const DRAIN_COLUMNS: [QueueColumn; 5] = [
    ("all/s", |window| window.pushed_and_run_per_second),
    ("run/s", |window| window.jobs_per_second),
    ("commands/run", |window| window.commands_per_job),
    ("Redis us/run", |window| window.redis_micros_per_job),
    ("Redis core", |window| window.redis_core_share),
];

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let mut all_figures = Vec::new();
    report::print_title("2. Pushes of 1 KiB, one producer");
    let push_kinds = [&all_queue_kinds()[..], &[QueueKind::BlockedRequests]].concat();
    let one_producer = QueueComparison::run(bench, &push_kinds, &PUSH_COLUMNS, |bench, kind| {
        measure_pushes(bench, kind, 1)
    })?;
    all_figures.extend(push_figures(&one_producer, ["2a", "2b"], 1.0, "1 producer"));
    report::print_title("2. Pushes of 1 KiB, 32 producers of one process");
    let many_producers = QueueComparison::run(bench, &push_kinds, &PUSH_COLUMNS, |bench, kind| {
        measure_pushes(bench, kind, PRODUCER_COUNT)
    })?;
    all_figures.extend(push_figures(&many_producers, ["2c", "2d"], 0.8, "32 producers"));
    let backlog = bench.sizes.backlog;
    for (ids, concurrency) in [(["2e", "2f"], 32), (["2g", "2h"], 1)] {
        report::print_title(&format!(
            "2. Pushed, run and settled: {backlog} jobs, concurrency {concurrency} \
             (apalis-redis: {}, because it fails with more)",
            QueueKind::ApalisRedis.max_backlog(backlog)
        ));
        let runs =
            QueueComparison::run(bench, &all_queue_kinds(), &DRAIN_COLUMNS, |bench, kind| {
                measure_drain(
                    bench,
                    &QueuePlan::for_push(kind, bench.runner.server.port(), concurrency),
                )
            })?;
        let load = format!("pushed, run, settled at concurrency {concurrency}");
        let can_run_backlog = |kind: QueueKind| kind.max_backlog(backlog) == backlog;
        all_figures.extend(peer_ratio_figures(
            &runs,
            ids,
            1.5,
            &load,
            |window| window.pushed_and_run_per_second,
            can_run_backlog,
        ));
        if concurrency == 1 {
            print_one_round_trip_bound(&runs, can_run_backlog);
        }
    }
    Ok(all_figures)
}

/// Prints the ratio that would result if each run took one `PING`. With concurrency 1, each run
/// takes at least one round trip, because a worker claims a job directly before it starts. This
/// bound puts the target into perspective.
fn print_one_round_trip_bound(
    comparison: &QueueComparison,
    can_run_backlog: impl Fn(QueueKind) -> bool,
) {
    let median_of =
        |kind, value: fn(&QueueMeasurement) -> f64| median(&comparison.round_values(kind, value));
    let Some(best_peer) =
        comparison.best_peer(|window| window.pushed_and_run_per_second, can_run_backlog)
    else {
        return;
    };
    let peer_rate = median_of(best_peer, |window| window.pushed_and_run_per_second);
    for kind in
        QueueKind::LOCKGATE.into_iter().filter(|kind| !comparison.measurements(*kind).is_empty())
    {
        let (push_and_run_rate, run_rate) = (
            median_of(kind, |window| window.pushed_and_run_per_second),
            median_of(kind, |window| window.jobs_per_second),
        );
        let seconds_per_job =
            1.0 / push_and_run_rate - 1.0 / run_rate + comparison.median_ping_millis() / 1e3;
        let ratio = format_number(1.0 / seconds_per_job / peer_rate);
        println!(
            "  with one PING in place of each run, {kind} would reach {ratio} x \
             the rate of {best_peer}"
        );
    }
}

fn all_queue_kinds() -> Vec<QueueKind> {
    QueueKind::LOCKGATE.into_iter().chain(QueueKind::PEERS).collect()
}

/// Creates a ratio figure for each queue of lockgate, compared with the best peer for which
/// `can_compare` is true.
fn peer_ratio_figures(
    comparison: &QueueComparison,
    ids: [&'static str; 2],
    min_ratio: f64,
    load: &str,
    value: fn(&QueueMeasurement) -> f64,
    can_compare: impl Fn(QueueKind) -> bool,
) -> Vec<BenchFigure> {
    let best_peer = comparison.best_peer(value, can_compare);
    let numbered_kinds = ids.into_iter().zip(QueueKind::LOCKGATE);
    let figures = numbered_kinds.map(|(id, kind)| {
        let round_values = best_peer
            .map(|best_peer| comparison.ratios(kind, best_peer, value))
            .unwrap_or_default();
        let best_peer =
            best_peer.map_or_else(|| "no peer".to_owned(), |best_peer| best_peer.to_string());
        let description = format!("{load}: {kind} / {best_peer}");
        BenchFigure {
            id,
            description,
            unit: "x",
            target: FigureTarget::AtLeast(min_ratio),
            round_values,
        }
    });
    figures.collect()
}

/// Creates the ratio figures of pushes, and prints the command profile of a queue that misses its
/// target. With 32 producers, a figure that misses its target is replaced by the utilization of
/// Redis if that reaches `BUSY_CORE_SHARE`: the server then limits the rate, because lockgate
/// guarantees more per job than the peers.
fn push_figures(
    comparison: &QueueComparison,
    ids: [&'static str; 2],
    min_ratio: f64,
    load: &str,
) -> Vec<BenchFigure> {
    let mut figures = peer_ratio_figures(
        comparison,
        ids,
        min_ratio,
        load,
        |window| window.jobs_per_second,
        |_| true,
    );
    for (figure, kind) in figures.iter_mut().zip(QueueKind::LOCKGATE) {
        if figure.verdict().reached || figure.round_values.is_empty() {
            continue;
        }
        print_command_profile(kind, comparison.measurements(kind));
        let core_share = median(&comparison.round_values(kind, |window| window.redis_core_share));
        if min_ratio < 1.0 {
            println!(
                "  {kind}: {} x misses the target; Redis uses {} of a core",
                format_number(figure.median_value()),
                format_number(core_share)
            );
            if core_share >= BUSY_CORE_SHARE {
                figure.description += &format!(" ({} x)", format_number(figure.median_value()));
                figure.round_values = comparison.round_values(kind, |window| {
                    min_ratio * window.redis_core_share / BUSY_CORE_SHARE
                });
            }
        }
    }
    figures
}

/// Prints the time of Redis by command. The time of a script includes the commands that it calls.
fn print_command_profile(kind: QueueKind, measurements: &[QueueMeasurement]) {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, (calls, micros)) in measurements.iter().flat_map(|window| &window.command_profile) {
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + calls, sum.1 + micros);
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, (calls, _))| *calls > 0).collect();
    sums.sort_unstable_by_key(|(_, (_, micros))| std::cmp::Reverse(*micros));
    let header =
        [format!("{kind}, by command"), "calls".into(), "us in total".into(), "us per call".into()];
    let rows = sums.into_iter().take(12).map(|(name, (calls, micros))| {
        vec![
            name.to_owned(),
            calls.to_string(),
            micros.to_string(),
            format_number(to_f64(micros) / to_f64(calls)),
        ]
    });
    report::print_table(&[header.to_vec()].into_iter().chain(rows).collect::<Vec<_>>());
}

/// Measures a window in which `producers` tasks push.
fn measure_pushes(
    bench: &mut QueueBench,
    kind: QueueKind,
    producers: usize,
) -> BenchResult<QueueMeasurement> {
    bench.runner.server.flush()?;
    let window = clock::duration_nanos(bench.runner.settings.window);
    let plan = QueuePlan::for_push(kind, bench.runner.server.port(), producers);
    let plan = QueuePlan { window, resource_count: RESOURCE_COUNT, ..plan };
    let mut processes = [bench.start_process(&plan)?];
    let counters = bench.runner.count_window(&mut processes)?;
    let [process] = &mut processes;
    let report: PushReport = process.read_json()?;
    let job_counts = crate::queue::count_jobs(&mut bench.runner.server, kind)?;
    let mut measurement =
        QueueMeasurement { p50: report.p50, p99: report.p99, ..QueueMeasurement::default() };
    measurement.jobs_per_second =
        to_f64(report.counted) / bench.runner.settings.window.as_secs_f64();
    add_command_counts(&mut measurement, &counters.before, &counters.after, to_f64(report.counted));
    measurement.failure = find_push_failure(&report, job_counts);
    Ok(measurement)
}

fn add_command_counts(
    measurement: &mut QueueMeasurement,
    before: &ServerCounters,
    after: &ServerCounters,
    jobs: f64,
) {
    measurement.redis_core_share = after.core_share_since(before);
    let count_since = |counts: &BTreeMap<String, u64>, name: &str, after_count: u64| {
        after_count.saturating_sub(counts.get(name).copied().unwrap_or(0))
    };
    for (name, calls) in &after.calls {
        let calls = count_since(&before.calls, name, *calls);
        let micros = after.micros.get(name).copied().unwrap_or(0);
        let micros = count_since(&before.micros, name, micros);
        measurement.command_profile.insert(name.clone(), (calls, micros));
    }
    measurement.commands_per_job =
        to_f64(measurement.command_profile.values().map(|(calls, _)| calls).sum()) / jobs;
    measurement.redis_micros_per_job = (after.cpu_seconds - before.cpu_seconds) * 1e6 / jobs;
}

/// Checks that exactly the answered pushes are stored.
fn find_push_failure(report: &PushReport, job_counts: JobCounts) -> Option<String> {
    if let Some(first_failure) = &report.first_failure {
        return Some(format!("{} pushes FAILED, the first: {first_failure}", report.failed));
    }
    (job_counts != JobCounts { waiting: report.pushed, ..JobCounts::default() }).then(|| {
        format!("{} pushes were answered, but the server has {job_counts:?}", report.pushed)
    })
}

/// Pushes a backlog and measures how one worker process runs it. The plan contains the queue and
/// the concurrency of the worker.
pub(super) fn measure_drain(
    bench: &mut QueueBench,
    plan: &QueuePlan,
) -> BenchResult<QueueMeasurement> {
    bench.runner.server.flush()?;
    let (kind, jobs) = (plan.kind, plan.kind.max_backlog(bench.sizes.backlog));
    let push_plan = QueuePlan {
        jobs,
        concurrency: PRODUCER_COUNT,
        resource_count: RESOURCE_COUNT,
        ..plan.clone()
    };
    let push_report = bench.push_jobs(&push_plan)?;
    let job_counts = crate::queue::count_jobs(&mut bench.runner.server, kind)?;
    if let Some(failure) = find_push_failure(&push_report, job_counts) {
        return Ok(QueueMeasurement { failure: Some(failure), ..QueueMeasurement::default() });
    }
    let run_plan = QueuePlan::for_run(kind, plan.redis_port, plan.concurrency, jobs);
    let before = bench.runner.server.read_counters()?;
    let mut worker = bench.start_process(&run_plan)?;
    worker.wait_until_ready()?;
    worker.write_line(&clock::now().to_string())?;
    if worker.read_line()? != "done" {
        return Err("the worker did not send `done`".into());
    }
    let after = bench.runner.server.read_counters()?;
    let job_counts = bench.wait_until_settled(kind)?;
    worker.write_line("end")?;
    let run_report: RunReport = worker.read_json()?;
    let (run_nanos, push_nanos) =
        (run_report.last_start - run_report.first_start, push_report.ended - push_report.began);
    let mut measurement = QueueMeasurement {
        jobs_per_second: to_f64(run_report.distinct_runs) * 1e9 / to_f64(run_nanos),
        pushed_and_run_per_second: to_f64(run_report.distinct_runs) * 1e9
            / to_f64(run_nanos + push_nanos),
        failure: find_run_failure(jobs, &push_report, &run_report, job_counts),
        ..QueueMeasurement::default()
    };
    add_command_counts(&mut measurement, &before, &after, to_f64(run_report.distinct_runs));
    // Relative to the time in which jobs ran, without the start and the end of the process.
    measurement.redis_core_share =
        (after.cpu_seconds - before.cpu_seconds) * 1e9 / to_f64(run_nanos);
    Ok(measurement)
}
