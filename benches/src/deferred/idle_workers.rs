//! Figure 4: commands that idle workers send. All fleets are measured at the same time, each with
//! its own server.

use std::thread;

use super::queue_bench::QueueBench;
use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_process::BenchProcess,
    bench_result::BenchResult,
    clock,
    command_origins::{CommandCounts, CommandMonitor},
    queue::{QueueKind, QueuePlan},
    redis_server::RedisServer,
    report,
    stats::median,
};

/// Workers of a fleet beyond the first, to measure the commands of each further worker.
const ADDED_WORKERS: usize = 4;

/// Time for the initial commands of new workers.
const STARTUP_TIME: std::time::Duration = std::time::Duration::from_secs(2);

struct WorkerFleet {
    kind: QueueKind,
    workers: Vec<BenchProcess>,
    server: RedisServer,
    command_rates: Vec<CommandCounts>,
}

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let (window, rounds) = (bench.sizes.idle_window, bench.runner.settings.rounds);
    report::print_title(&format!(
        "4. Idle workers: commands per second, {rounds} times {window:?}"
    ));
    let mut fleets = start_fleets(bench);
    thread::sleep(STARTUP_TIME);
    for round in 0..rounds {
        let monitors = fleets.iter().map(|fleet| CommandMonitor::start(fleet.server.port()));
        let monitors = monitors.collect::<BenchResult<Vec<_>>>()?;
        clock::sleep_until(clock::now() + clock::duration_nanos(window));
        for (fleet, monitor) in fleets.iter_mut().zip(monitors) {
            let counts = monitor.stop()?.total();
            let per_second = |calls: f64| calls / window.as_secs_f64();
            fleet.command_rates.push(CommandCounts {
                sent: per_second(counts.sent),
                executed: per_second(counts.executed),
            });
        }
        report::print_progress(round + 1, rounds);
    }
    print_fleet_table(&fleets);
    Ok(idle_figures(&fleets))
}

/// Starts a fleet of one worker and one of several for each queue.
fn start_fleets(bench: &mut QueueBench) -> Vec<WorkerFleet> {
    let mut fleets = Vec::new();
    for kind in QueueKind::LOCKGATE.into_iter().chain(QueueKind::PEERS) {
        for worker_count in [1, 1 + ADDED_WORKERS] {
            if !bench.is_available(kind) {
                continue;
            }
            match start_fleet(bench, kind, worker_count) {
                Ok(fleet) => fleets.push(fleet),
                Err(error) => bench.report_skipped(kind, &error.to_string()),
            }
        }
    }
    fleets
}

fn start_fleet(
    bench: &QueueBench,
    kind: QueueKind,
    worker_count: usize,
) -> BenchResult<WorkerFleet> {
    let server = RedisServer::start()?;
    let plan = QueuePlan::for_run(kind, server.port(), 1, 0);
    let start = |process_number| {
        let mut process = bench.start_process(&QueuePlan { process_number, ..plan.clone() })?;
        process.wait_until_ready()?;
        Ok(process)
    };
    let workers = (0..worker_count as u64).map(start).collect::<BenchResult<Vec<_>>>()?;
    Ok(WorkerFleet { kind, workers, server, command_rates: Vec::new() })
}

fn round_values(fleet: &WorkerFleet, value: fn(&CommandCounts) -> f64) -> Vec<f64> {
    fleet.command_rates.iter().map(value).collect()
}

fn print_fleet_table(fleets: &[WorkerFleet]) {
    let header = ["median of the rounds", "workers", "sent/s", "executed/s, with scripts"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for fleet in fleets {
        rows.push(vec![
            fleet.kind.to_string(),
            fleet.workers.len().to_string(),
            format_number(median(&round_values(fleet, |counts| counts.sent))),
            format_number(median(&round_values(fleet, |counts| counts.executed))),
        ]);
    }
    report::print_table(&rows);
}

/// Creates the figures of executed commands, including those inside of scripts.
fn idle_figures(fleets: &[WorkerFleet]) -> Vec<BenchFigure> {
    let executed_rates = |kind: QueueKind, worker_count: usize| {
        let fleet =
            fleets.iter().find(|fleet| fleet.kind == kind && fleet.workers.len() == worker_count);
        fleet.map(|fleet| round_values(fleet, |counts| counts.executed)).unwrap_or_default()
    };
    let ids = [["4c", "4d"], ["4e", "4f"]];
    let figures_of = |(ids, kind): ([&'static str; 2], QueueKind)| {
        let (one_worker, several_workers) =
            (executed_rates(kind, 1), executed_rates(kind, 1 + ADDED_WORKERS));
        let added_rate = |(several, one): (&f64, &f64)| (several - one) / 4.0;
        let added_rates = several_workers.iter().zip(&one_worker).map(added_rate).collect();
        let figure = |id, subject: &str, max_rate, round_values| BenchFigure {
            id,
            description: format!("{kind}: commands run per second, {subject}"),
            unit: "",
            target: FigureTarget::AtMost(max_rate),
            round_values,
        };
        [
            figure(ids[0], "one idle worker", 2.0, one_worker),
            figure(ids[1], "each further worker", 0.5, added_rates),
        ]
    };
    ids.into_iter().zip([QueueKind::Requests, QueueKind::Tasks]).flat_map(figures_of).collect()
}
