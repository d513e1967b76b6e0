//! Figure 3: one key that everybody wants, 5 ms of work under the lock.

use std::time::Duration;

use crate::{
    bench::Bench,
    contest::Contest,
    contestant::{Load, Who},
    figure::{Figure, Line},
    outcome::Outcome,
    plan::{Keys, Trial},
    report,
    stats::paired_ratios,
    work,
};

const LENGTH: Duration = Duration::from_millis(5);
const TASKS: u32 = 16;

const ALL: [Who; 5] =
    [Who::Lockgate, Who::Rslock, Who::Distkit, Who::DistributedLockRedis, Who::Raw];

/// All in one process, and the same split over four.
fn loads() -> [Trial; 2] {
    let work = work::calibrated(LENGTH);
    [1, 4].map(|processes| Trial { processes, tasks: TASKS / processes, keys: Keys::Hot, work })
}

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    let [together, split] = loads();
    report::title("3. Hot key, 16 tasks, 5 ms of work inside: one process");
    let one = Contest::run(bench, Load::Work, &together, &ALL)?;
    report::title("3. The same, 4 processes x 4 tasks");
    let four = Contest::run(bench, Load::SplitWork, &split, &ALL)?;
    let ideal =
        |contest: &Contest| contest.ratios(Who::Lockgate, Who::Nothing, |window| window.acquired);
    let longest = one.rounds(Who::Lockgate, |window| window.longest);
    let all_turns = one.rounds(Who::Nothing, |window| f64::from(TASKS) * window.work);
    Ok(vec![
        Figure {
            id: "3a",
            what: "acquisitions, of the ideal (one task without a lock), one process".into(),
            unit: "",
            line: Line::AtLeast(0.97),
            rounds: ideal(&one),
        },
        Figure {
            id: "3b",
            what: "longest wait, over 16 x the work".into(),
            unit: "x",
            line: Line::AtMost(1.3),
            rounds: paired_ratios(&longest, &all_turns),
        },
        Figure {
            id: "3c",
            what: "acquisitions, of the ideal, four processes".into(),
            unit: "",
            line: Line::AtLeast(0.90),
            rounds: ideal(&four),
        },
    ])
}
