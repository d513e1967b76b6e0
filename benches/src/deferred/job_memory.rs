//! Figure 4: memory of the server for a waiting job.

use super::queue_bench::QueueBench;
use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_process::BenchProcess,
    bench_result::BenchResult,
    clock,
    queue::{JobCounts, PushReport, QueueKind, QueuePlan, count_jobs},
    report,
    stats::to_f64,
};

const PRODUCER_COUNT: usize = 32;

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let jobs = bench.sizes.stored_jobs;
    report::print_title(&format!("4. Memory of Redis per job, with {jobs} waiting jobs of 1 KiB"));
    let mut rows = vec![["", "B per job"].map(str::to_owned).to_vec()];
    let mut figures = Vec::new();
    let requests = [("4a", 1, 2_100.0), ("4b", jobs, 2_300.0)];
    for (id, resources, max_bytes) in requests {
        let label =
            format!("{} (1 KiB + a head of 150 B), {resources} resources", QueueKind::Requests);
        let round_values =
            report_bytes_per_job(bench, QueueKind::Requests, jobs, resources, &label, &mut rows);
        let target = FigureTarget::AtMost(max_bytes);
        figures.push(BenchFigure {
            id,
            description: format!("memory: {label}"),
            unit: "B",
            target,
            round_values,
        });
    }
    for kind in [QueueKind::Tasks].into_iter().chain(QueueKind::PEERS) {
        report_bytes_per_job(bench, kind, jobs, 1, &kind.to_string(), &mut rows);
    }
    report::print_table(&rows);
    Ok(figures)
}

/// Measures once, because memory hardly differs between rounds. Returns no value if the measurement
/// fails.
fn report_bytes_per_job(
    bench: &mut QueueBench,
    kind: QueueKind,
    jobs: u64,
    resources: u64,
    label: &str,
    rows: &mut Vec<Vec<String>>,
) -> Vec<f64> {
    if !bench.is_available(kind) {
        return Vec::new();
    }
    match measure_bytes_per_job(bench, kind, jobs, resources) {
        Ok(bytes) => {
            rows.push(vec![label.to_owned(), format_number(bytes)]);
            vec![bytes]
        }
        Err(error) => {
            bench.report_skipped(kind, &error.to_string());
            Vec::new()
        }
    }
}

fn measure_bytes_per_job(
    bench: &mut QueueBench,
    kind: QueueKind,
    jobs: u64,
    resources: u64,
) -> BenchResult<f64> {
    bench.runner.server.flush()?;
    let plan = QueuePlan::for_push(kind, bench.runner.server.port(), PRODUCER_COUNT);
    let mut process =
        bench.start_process(&QueuePlan { jobs, resource_count: resources, ..plan })?;
    process.wait_until_ready()?;
    // Excludes the locks that the producer holds to make requests wait.
    let before = bench.runner.server.used_memory()?;
    process.write_line(&clock::now().to_string())?;
    let report: PushReport = process.read_json()?;
    let after = settled_memory(bench, &mut process)?;
    let counts = count_jobs(&mut bench.runner.server, kind)?;
    if report.pushed != jobs || counts != (JobCounts { waiting: jobs, ..JobCounts::default() }) {
        let first_failure = report.first_failure.unwrap_or_default();
        return Err(
            format!("after {jobs} pushes the server has {counts:?}; {first_failure}").into()
        );
    }
    Ok((to_f64(after) - to_f64(before)) / to_f64(jobs))
}

/// Returns the used memory after Redis has freed the buffers of its connections.
fn settled_memory(bench: &mut QueueBench, _process: &mut BenchProcess) -> BenchResult<u64> {
    let mut smallest = u64::MAX;
    for _ in 0..5 {
        std::thread::sleep(std::time::Duration::from_millis(200));
        smallest = smallest.min(bench.runner.server.used_memory()?);
    }
    Ok(smallest)
}
