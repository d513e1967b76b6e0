//! Figure 3: one key for all tasks, 5 ms of work under the lock.

use std::time::Duration;

use crate::{
    bench_figure::{BenchFigure, FigureTarget},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    lock_comparison::LockComparison,
    lock_contender::{ContenderKind, LockLoad},
    report, simulated_work,
    stats::paired_ratios,
    worker_plan::{LockKeys, LockScenario},
};

const WORK_LENGTH: Duration = Duration::from_millis(5);
const TASK_COUNT: u32 = 16;

const CONTENDERS: [ContenderKind; 5] = [
    ContenderKind::Lockgate,
    ContenderKind::Rslock,
    ContenderKind::Distkit,
    ContenderKind::DistributedLockRedis,
    ContenderKind::Raw,
];

/// Creates the scenarios: all tasks in one process, and the same tasks in four processes.
fn work_scenarios() -> [LockScenario; 2] {
    let work_iterations = simulated_work::calibrate_iterations(WORK_LENGTH);
    [1, 4].map(|processes| LockScenario {
        processes,
        tasks_per_process: TASK_COUNT / processes,
        keys: LockKeys::Hot,
        work_iterations,
    })
}

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    let [one_process_scenario, four_process_scenario] = work_scenarios();
    report::print_title("3. Hot key, 16 tasks, 5 ms of work under the lock: one process");
    let one_process =
        LockComparison::run(bench, LockLoad::Work, &one_process_scenario, &CONTENDERS)?;
    report::print_title("3. The same, 4 processes x 4 tasks");
    let four_processes =
        LockComparison::run(bench, LockLoad::SplitWork, &four_process_scenario, &CONTENDERS)?;
    let ideal_ratios = |comparison: &LockComparison| {
        comparison.ratios(ContenderKind::Lockgate, ContenderKind::NoLock, |window| {
            window.acquired_per_second
        })
    };
    let longest_waits = one_process.round_values(ContenderKind::Lockgate, |window| window.longest);
    let total_work = one_process
        .round_values(ContenderKind::NoLock, |window| f64::from(TASK_COUNT) * window.mean_work);
    Ok(vec![
        BenchFigure {
            id: "3a",
            description: "acquisitions, of the ideal (one task without a lock), one process".into(),
            unit: "",
            target: FigureTarget::AtLeast(0.97),
            round_values: ideal_ratios(&one_process),
        },
        BenchFigure {
            id: "3b",
            description: "longest wait, over 16 x the work".into(),
            unit: "x",
            target: FigureTarget::AtMost(1.3),
            round_values: paired_ratios(&longest_waits, &total_work),
        },
        BenchFigure {
            id: "3c",
            description: "acquisitions, of the ideal, four processes".into(),
            unit: "",
            target: FigureTarget::AtLeast(0.90),
            round_values: ideal_ratios(&four_processes),
        },
    ])
}
