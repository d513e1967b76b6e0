//! Line 1: how soon a job starts, once nothing is in its way.

use std::{thread, time::Duration};

use super::{
    contest::{Column, Contest, Window},
    stage::Stage,
};
use crate::{
    clock,
    figure::{Figure, Line},
    outcome::Outcome,
    queue::{Kind, Left, Plan, Pushed, Ran},
    report,
    stats::{float, millis, per_mille},
};

/// Between two jobs: the queue is idle again.
const PAUSE: Duration = Duration::from_millis(20);

const DELAY: u64 = 1_000;

/// After a worker has said that it is ready: those that announce themselves have done so.
const ARRIVED: Duration = Duration::from_millis(300);

const COLUMNS: [Column; 5] = [
    ("p50", |window| window.p50),
    ("p99", |window| window.p99),
    ("least", |window| window.least),
    ("longest", |window| window.longest),
    ("early", |window| window.early),
];

pub(super) fn run(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    report::title("1. From the release of the lock to the start of the request that waited for it");
    let released =
        Contest::run(stage, &[Kind::Busy], &COLUMNS, |stage, kind| window(stage, kind, 0))?;
    let mut all = figures(&released, Kind::Busy, ["1a", "1b"], "release to start", [2.0, 10.0]);

    report::title("1. Idle queue: from the push to the start, one worker");
    let idle = Contest::run(stage, &everybody(), &COLUMNS, |stage, kind| window(stage, kind, 0))?;
    for (ids, kind) in [["1c", "1d"], ["1e", "1f"]].into_iter().zip(Kind::OURS) {
        all.extend(figures(&idle, kind, ids, "push to start", [0.6, 1.5]));
    }

    report::title("1. Delayed by 1 s: how late, one worker");
    let late =
        Contest::run(stage, &everybody(), &COLUMNS, |stage, kind| window(stage, kind, DELAY))?;
    for (ids, kind) in [["1g", "1h", "1i"], ["1j", "1k", "1l"]].into_iter().zip(Kind::OURS) {
        let [p50, p99, early] = ids;
        all.extend(figures(&late, kind, [p50, p99], "delayed by 1 s, late", [2.0, 10.0]));
        all.push(Figure {
            id: early,
            what: format!("{kind}: started early"),
            unit: "",
            line: Line::AtMost(0.0),
            rounds: late.rounds(kind, |window| window.early),
        });
    }
    Ok(all)
}

type Value = fn(&Window) -> f64;

fn everybody() -> Vec<Kind> {
    Kind::OURS.into_iter().chain(Kind::PEERS).collect()
}

fn figures(
    contest: &Contest,
    kind: Kind,
    ids: [&'static str; 2],
    what: &str,
    lines: [f64; 2],
) -> Vec<Figure> {
    let values: [(&str, Value); 2] = [("p50", |window| window.p50), ("p99", |window| window.p99)];
    let both = ids.into_iter().zip(values).zip(lines);
    let figures = both.map(|((id, (name, value)), line)| Figure {
        id,
        what: format!("{kind}: {what}, {name}"),
        unit: "ms",
        line: Line::AtMost(line),
        rounds: contest.rounds(kind, value),
    });
    figures.collect()
}

/// One after the other, by a process that pushes to one that runs.
pub(super) fn window(stage: &mut Stage, kind: Kind, delay: u64) -> Outcome<Window> {
    let plan = Plan { delay, ..Plan::push(kind, stage.bench.server.port(), 1) };
    stage.bench.server.flush()?;
    let (port, jobs) = (plan.port, stage.sizes.samples);
    let run = Plan { keep: true, ..Plan::run(plan.kind, port, 1, jobs) };
    let mut worker = stage.process(&run)?;
    worker.ready()?;
    worker.tell(&clock::now().to_string())?;
    thread::sleep(ARRIVED);
    let pause = clock::nanos(PAUSE);
    let pushed = stage.pushed(&Plan { jobs, pause, keep: true, ..plan })?;
    if worker.line()? != "done" {
        return Err("the worker did not say that it is done".into());
    }
    let left = stage.settled(plan.kind)?;
    worker.tell("end")?;
    let ran: Ran = worker.json()?;
    let mut window = seen(&pushed, &ran, plan.delay);
    window.fault = fault(jobs, &pushed, &ran, left);
    Ok(window)
}

fn seen(pushed: &Pushed, ran: &Ran, delay: u64) -> Window {
    let delay = delay * 1_000_000;
    let started = pushed.asked.iter().zip(&ran.starts).filter(|(_, start)| **start > 0);
    let due: Vec<(u64, u64)> = started.map(|(asked, start)| (asked + delay, *start)).collect();
    let early = due.iter().filter(|(due, start)| start < due).count();
    let mut late: Vec<u64> = due.iter().map(|(due, start)| start.saturating_sub(*due)).collect();
    late.sort_unstable();
    // The earliest tells by how much, should any have been early.
    let least = due.iter().map(|(due, start)| millis(*start) - millis(*due)).min_by(f64::total_cmp);
    Window {
        p50: millis(per_mille(&late, 500)),
        p99: millis(per_mille(&late, 990)),
        longest: millis(per_mille(&late, 1000)),
        least: least.unwrap_or(f64::NAN),
        early: float(u64::try_from(early).unwrap_or(u64::MAX)),
        ..Window::default()
    }
}

/// Every job was pushed, ran once, and ended.
pub(super) fn fault(jobs: u64, pushed: &Pushed, ran: &Ran, left: Left) -> Option<String> {
    if let Some(first) = &pushed.first_failure {
        return Some(format!("{} pushes FAILED, the first: {first}", pushed.failed));
    }
    let Ran { ran, twice, strange, .. } = *ran;
    if pushed.pushed != jobs || ran != jobs || twice > 0 || strange > 0 {
        let pushed = pushed.pushed;
        return Some(format!(
            "of {jobs} jobs {pushed} were pushed and {ran} ran, {twice} runs were not the first, \
             {strange} of nothing that was pushed"
        ));
    }
    (left != Left { done: jobs, ..Left::default() })
        .then(|| format!("all of {jobs} jobs ran, and the server has {left:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_counts_from_when_it_was_due() {
        let pushed = Pushed { asked: vec![1_000_000, 2_000_000], ..Pushed::default() };
        let ran = Ran { starts: vec![3_000_000, 2_500_000], ..Ran::default() };
        let window = seen(&pushed, &ran, 0);
        assert_eq!([window.p50, window.p99, window.early], [0.5, 2.0, 0.0]);
        let window = seen(&pushed, &ran, 1);
        assert_eq!([window.p99, window.early, window.least], [1.0, 1.0, -0.5]);
    }

    #[test]
    fn every_job_runs_once_and_ends() {
        let pushed = Pushed { pushed: 2, ..Pushed::default() };
        let ran = Ran { ran: 2, ..Ran::default() };
        let left = Left { done: 2, ..Left::default() };
        assert_eq!(fault(2, &pushed, &ran, left), None);
        assert!(fault(2, &pushed, &Ran { twice: 1, ..ran.clone() }, left).is_some());
        assert!(fault(2, &pushed, &Ran { ran: 1, ..ran.clone() }, left).is_some());
        assert!(fault(2, &pushed, &ran, Left { done: 1, running: 1, ..left }).is_some());
        assert!(fault(3, &pushed, &ran, left).is_some());
    }
}
