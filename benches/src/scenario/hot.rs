//! Figures 1 and 2: one key that everybody wants, nothing inside the lock.

use crate::{
    bench::Bench,
    contest::Contest,
    contestant::{Load, Who},
    figure::{Figure, Line, short},
    outcome::Outcome,
    plan::{Keys, Trial},
    report,
    stats::median,
};

const ONE_PROCESS: Trial = Trial { processes: 1, tasks: 64, keys: Keys::Hot, work: 0 };
const FOUR_PROCESSES: Trial = Trial { processes: 4, tasks: 16, keys: Keys::Hot, work: 0 };

const ALL: [Who; 5] =
    [Who::Lockgate, Who::Rslock, Who::Distkit, Who::DistributedLockRedis, Who::Raw];

pub(super) fn one_process(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("1. Hot key, one process, 64 tasks, nothing inside");
    let contest = Contest::run(bench, Load::HotKey, &ONE_PROCESS, &ALL)?;
    let limits = Limits { ids: ["1a", "1b", "1c", "1d"], times: 20.0, p99: 5.0, sent: 0.1 };
    let mut figures = limits.figures(&contest);
    figures.push(Figure {
        id: limits.ids[3],
        what: "tasks' shares, largest over smallest".into(),
        unit: "",
        line: Line::AtMost(1.15),
        rounds: contest.rounds(Who::Lockgate, |window| window.tasks.unevenness),
    });
    Ok(figures)
}

pub(super) fn four_processes(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("2. Hot key, 4 processes x 16 tasks, nothing inside");
    let contest = Contest::run(bench, Load::Processes, &FOUR_PROCESSES, &ALL)?;
    let limits = Limits { ids: ["2a", "2b", "2c", "2d"], times: 10.0, p99: 25.0, sent: 1.0 };
    let mut figures = limits.figures(&contest);
    figures.push(Figure {
        id: limits.ids[3],
        what: "processes' shares, largest over smallest".into(),
        unit: "",
        line: Line::AtMost(1.25),
        rounds: contest.rounds(Who::Lockgate, |window| window.processes.unevenness),
    });
    Ok(figures)
}

/// What the two have in common.
struct Limits {
    ids: [&'static str; 4],
    times: f64,
    p99: f64,
    sent: f64,
}

impl Limits {
    fn figures(&self, contest: &Contest) -> Vec<Figure> {
        let best = contest.best_library(|window| window.changed);
        let raw = median(&contest.ratios(Who::Lockgate, Who::Raw, |window| window.changed));
        println!("  beside the figures: {} x the holder changes of raw", short(raw));
        let ours =
            |value: fn(&crate::summary::Summary) -> f64| contest.rounds(Who::Lockgate, value);
        vec![
            Figure {
                id: self.ids[0],
                what: format!("holder changes, lockgate / {best} (the best library)"),
                unit: "x",
                line: Line::AtLeast(self.times),
                rounds: contest.ratios(Who::Lockgate, best, |window| window.changed),
            },
            Figure {
                id: self.ids[1],
                what: "p99 wait".into(),
                unit: "ms",
                line: Line::AtMost(self.p99),
                rounds: ours(|window| window.p99),
            },
            Figure {
                id: self.ids[2],
                what: "commands sent per acquisition".into(),
                unit: "",
                line: Line::AtMost(self.sent),
                rounds: ours(|window| window.sent),
            },
        ]
    }
}
