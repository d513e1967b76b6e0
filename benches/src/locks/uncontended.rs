//! Figure 4: locks without contention, each key used by one task only.

use crate::{
    bench_figure::{BenchFigure, FigureTarget},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    lock_comparison::LockComparison,
    lock_contender::{ContenderKind, LockLoad},
    report,
    worker_plan::{LockKeys, LockScenario},
};

/// Number of keys that a task uses in turn, so that an acquire does not wait for the background
/// release of the lock before.
const KEYS_PER_TASK: u32 = 16;

const ONE_TASK: LockScenario = LockScenario {
    processes: 1,
    tasks_per_process: 1,
    keys: LockKeys::Own(KEYS_PER_TASK),
    work_iterations: 0,
};
const MANY_TASKS: LockScenario = LockScenario {
    processes: 1,
    tasks_per_process: 64,
    keys: LockKeys::Own(KEYS_PER_TASK),
    work_iterations: 0,
};

/// Acquire and release are 2 commands; 1 % more allows for calls that cross an end of the window.
const MAX_SENT_PER_CYCLE: f64 = 2.02;

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    let (lockgate, background) = (ContenderKind::Lockgate, ContenderKind::LockgateBackground);
    report::print_title("4. Uncontended, 1 task");
    let kinds = [
        lockgate,
        background,
        ContenderKind::Raw,
        ContenderKind::Rslock,
        ContenderKind::DistributedLockRedis,
    ];
    let one_task = LockComparison::run(bench, LockLoad::Uncontended, &ONE_TASK, &kinds)?;
    report::print_title("4. Uncontended, 64 tasks with keys of their own");
    let kinds = [lockgate, background, ContenderKind::Raw, ContenderKind::Rslock];
    let many_tasks = LockComparison::run(bench, LockLoad::Uncontended, &MANY_TASKS, &kinds)?;
    let ratio = |id, compared: &str, min_ratio, round_values| BenchFigure {
        id,
        description: format!("cycles, {compared}"),
        unit: "x",
        target: FigureTarget::AtLeast(min_ratio),
        round_values,
    };
    Ok(vec![
        ratio(
            "4a",
            "lockgate / raw, 1 task",
            0.90,
            one_task.ratios(lockgate, ContenderKind::Raw, |window| window.acquired_per_second),
        ),
        ratio(
            "4b",
            "lockgate with release in the background / raw, 1 task",
            1.5,
            one_task.ratios(background, ContenderKind::Raw, |window| window.acquired_per_second),
        ),
        ratio(
            "4c",
            "lockgate / rslock, 64 tasks",
            0.85,
            many_tasks.ratios(lockgate, ContenderKind::Rslock, |window| window.acquired_per_second),
        ),
        BenchFigure {
            id: "4d",
            description: "commands sent per cycle, 1 task: one to acquire, one to release".into(),
            unit: "",
            target: FigureTarget::AtMost(MAX_SENT_PER_CYCLE),
            round_values: one_task.round_values(lockgate, |window| window.sent_per_acquire),
        },
    ])
}
