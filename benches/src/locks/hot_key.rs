//! Figures 1 and 2: one key for all tasks, no work under the lock.

use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    lock_comparison::LockComparison,
    lock_contender::{ContenderKind, LockLoad},
    report,
    stats::median,
    worker_plan::{LockKeys, LockScenario},
};

const ONE_PROCESS: LockScenario =
    LockScenario { processes: 1, tasks_per_process: 64, keys: LockKeys::Hot, work_iterations: 0 };
const FOUR_PROCESSES: LockScenario =
    LockScenario { processes: 4, tasks_per_process: 16, keys: LockKeys::Hot, work_iterations: 0 };

const CONTENDERS: [ContenderKind; 5] = [
    ContenderKind::Lockgate,
    ContenderKind::Rslock,
    ContenderKind::Distkit,
    ContenderKind::DistributedLockRedis,
    ContenderKind::Raw,
];

pub(super) fn measure_one_process(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("1. Hot key, one process, 64 tasks, no work under the lock");
    let comparison = LockComparison::run(bench, LockLoad::HotKey, &ONE_PROCESS, &CONTENDERS)?;
    let targets = HotKeyTargets {
        ids: ["1a", "1b", "1c", "1d"],
        min_ratio: 20.0,
        max_p99_millis: 5.0,
        max_sent_per_acquire: 0.1,
    };
    let mut figures = targets.target_figures(&comparison);
    figures.push(BenchFigure {
        id: targets.ids[3],
        description: "tasks' shares, largest over smallest".into(),
        unit: "",
        target: FigureTarget::AtMost(1.15),
        round_values: comparison
            .round_values(ContenderKind::Lockgate, |window| window.task_shares.max_min_ratio),
    });
    Ok(figures)
}

pub(super) fn measure_four_processes(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("2. Hot key, 4 processes x 16 tasks, no work under the lock");
    let comparison =
        LockComparison::run(bench, LockLoad::FourProcesses, &FOUR_PROCESSES, &CONTENDERS)?;
    let targets = HotKeyTargets {
        ids: ["2a", "2b", "2c", "2d"],
        min_ratio: 10.0,
        max_p99_millis: 25.0,
        max_sent_per_acquire: 1.0,
    };
    let mut figures = targets.target_figures(&comparison);
    figures.push(BenchFigure {
        id: targets.ids[3],
        description: "processes' shares, largest over smallest".into(),
        unit: "",
        target: FigureTarget::AtMost(1.25),
        round_values: comparison
            .round_values(ContenderKind::Lockgate, |window| window.process_shares.max_min_ratio),
    });
    Ok(figures)
}

/// Targets of the figures that both parts have.
struct HotKeyTargets {
    ids: [&'static str; 4],
    min_ratio: f64,
    max_p99_millis: f64,
    max_sent_per_acquire: f64,
}

impl HotKeyTargets {
    fn target_figures(&self, comparison: &LockComparison) -> Vec<BenchFigure> {
        let best_library = comparison.best_library(|window| window.holder_changes_per_second);
        let raw_ratio =
            median(&comparison.ratios(ContenderKind::Lockgate, ContenderKind::Raw, |window| {
                window.holder_changes_per_second
            }));
        println!("  beside the figures: {} x the holder changes of raw", format_number(raw_ratio));
        let own_values = |value: fn(&crate::lock_measurement::LockMeasurement) -> f64| {
            comparison.round_values(ContenderKind::Lockgate, value)
        };
        vec![
            BenchFigure {
                id: self.ids[0],
                description: format!(
                    "holder changes, lockgate / {best_library} (the best library)"
                ),
                unit: "x",
                target: FigureTarget::AtLeast(self.min_ratio),
                round_values: comparison.ratios(ContenderKind::Lockgate, best_library, |window| {
                    window.holder_changes_per_second
                }),
            },
            BenchFigure {
                id: self.ids[1],
                description: "p99 wait".into(),
                unit: "ms",
                target: FigureTarget::AtMost(self.max_p99_millis),
                round_values: own_values(|window| window.p99),
            },
            BenchFigure {
                id: self.ids[2],
                description: "commands sent per acquisition".into(),
                unit: "",
                target: FigureTarget::AtMost(self.max_sent_per_acquire),
                round_values: own_values(|window| window.sent_per_acquire),
            },
        ]
    }
}
