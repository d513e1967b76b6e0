//! Figure 4: keys of one's own. What the lock itself costs when nobody else wants it.

use crate::{
    bench::Bench,
    contest::Contest,
    contestant::{Load, Who},
    figure::{Figure, Line},
    outcome::Outcome,
    plan::{Keys, Trial},
    report,
};

/// Taken in turn, so that a release in the background is not what the next acquisition waits for.
const KEYS: u32 = 16;

const ONE_TASK: Trial = Trial { processes: 1, tasks: 1, keys: Keys::Own(KEYS), work: 0 };
const MANY_TASKS: Trial = Trial { processes: 1, tasks: 64, keys: Keys::Own(KEYS), work: 0 };

/// Acquire and release. The hundredth above it is for calls that lie across an end of the window.
const SENT: f64 = 2.02;

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    let (ours, background) = (Who::Lockgate, Who::LockgateBackground);
    report::title("4. Uncontended, 1 task");
    let who = [ours, background, Who::Raw, Who::Rslock, Who::DistributedLockRedis];
    let one = Contest::run(bench, Load::Uncontended, &ONE_TASK, &who)?;
    report::title("4. Uncontended, 64 tasks with keys of their own");
    let who = [ours, background, Who::Raw, Who::Rslock];
    let many = Contest::run(bench, Load::Uncontended, &MANY_TASKS, &who)?;
    let ratio = |id, what: &str, line, rounds| Figure {
        id,
        what: format!("cycles, {what}"),
        unit: "x",
        line: Line::AtLeast(line),
        rounds,
    };
    Ok(vec![
        ratio("4a", "lockgate / raw, 1 task", 0.90, one.ratios(ours, Who::Raw, |w| w.acquired)),
        ratio(
            "4b",
            "lockgate with release in the background / raw, 1 task",
            1.5,
            one.ratios(background, Who::Raw, |window| window.acquired),
        ),
        ratio(
            "4c",
            "lockgate / rslock, 64 tasks",
            0.85,
            many.ratios(ours, Who::Rslock, |window| window.acquired),
        ),
        Figure {
            id: "4d",
            what: "commands sent per cycle, 1 task: one to acquire, one to release".into(),
            unit: "",
            line: Line::AtMost(SENT),
            rounds: one.rounds(ours, |window| window.sent),
        },
    ])
}
