//! Line 2: how many jobs are pushed, and how many are pushed, run and acknowledged.

use std::collections::BTreeMap;

use super::{
    contest::{Column, Contest, Window},
    pickup::fault,
    stage::Stage,
};
use crate::{
    clock,
    figure::{Figure, Line, short},
    outcome::Outcome,
    queue::{Kind, Left, Plan, Pushed, Ran},
    redis::Counts,
    report,
    stats::{float, median},
};

/// Resources among which requests are divided: as many as can run at once, and more.
const RESOURCES: u64 = 1_000;

/// Producers that make a backlog.
const PRODUCERS: usize = 32;

/// Who keeps Redis this busy is not what is in the way.
const BUSY: f64 = 0.9;

const PUSHES: [Column; 6] = [
    ("pushed/s", |window| window.rate),
    ("p50", |window| window.p50),
    ("p99", |window| window.p99),
    ("commands/job", |window| window.run),
    ("Redis us/job", |window| window.micros),
    ("Redis core", |window| window.core),
];

const RUNS: [Column; 5] = [
    ("all/s", |window| window.both),
    ("run/s", |window| window.rate),
    ("commands/run", |window| window.run),
    ("Redis us/run", |window| window.micros),
    ("Redis core", |window| window.core),
];

pub(super) fn run(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    report::title("2. Pushes of 1 KiB, one producer");
    let pushing = [&everybody()[..], &[Kind::Busy]].concat();
    let one = Contest::run(stage, &pushing, &PUSHES, |stage, kind| push(stage, kind, 1))?;
    all.extend(pushed(&one, ["2a", "2b"], 1.0, "1 producer"));
    report::title("2. Pushes of 1 KiB, 32 producers of one process");
    let many = Contest::run(stage, &pushing, &PUSHES, |stage, kind| push(stage, kind, PRODUCERS))?;
    all.extend(pushed(&many, ["2c", "2d"], 0.8, "32 producers"));
    let backlog = stage.sizes.backlog;
    for (ids, concurrency) in [(["2e", "2f"], 32), (["2g", "2h"], 1)] {
        report::title(&format!(
            "2. Pushed, run and acknowledged: {backlog} jobs, concurrency {concurrency} \
             (apalis-redis: {}, of more it runs none)",
            Kind::ApalisRedis.backlog(backlog)
        ));
        let runs = Contest::run(stage, &everybody(), &RUNS, |stage, kind| {
            drain(stage, &Plan::push(kind, stage.bench.server.port(), concurrency))
        })?;
        let what = format!("pushed, run, acknowledged at {concurrency}");
        let bears = |kind: Kind| kind.backlog(backlog) == backlog;
        all.extend(beside(&runs, ids, 1.5, &what, |window| window.both, bears));
        if concurrency == 1 {
            one_trip_each(&runs, bears);
        }
    }
    Ok(all)
}

/// One run after the other is one round trip each, since a worker claims what it starts at once: what a line is worth
/// is seen beside a run that is one `PING`, and nothing else.
fn one_trip_each(contest: &Contest, bears: impl Fn(Kind) -> bool) {
    let median_of = |kind, value: fn(&Window) -> f64| median(&contest.rounds(kind, value));
    let Some(best) = contest.best(|window| window.both, bears) else { return };
    let theirs = median_of(best, |window| window.both);
    for kind in Kind::OURS.into_iter().filter(|kind| !contest.windows(*kind).is_empty()) {
        let (both, run) =
            (median_of(kind, |window| window.both), median_of(kind, |window| window.rate));
        let least = 1.0 / both - 1.0 / run + contest.ping() / 1e3;
        let times = short(1.0 / least / theirs);
        println!("  with one PING in place of each run {kind} would be at {times} x of {best}");
    }
}

fn everybody() -> Vec<Kind> {
    Kind::OURS.into_iter().chain(Kind::PEERS).collect()
}

/// A ratio for each of ours, to the best of those that bear the load.
fn beside(
    contest: &Contest,
    ids: [&'static str; 2],
    line: f64,
    what: &str,
    value: fn(&Window) -> f64,
    bears: impl Fn(Kind) -> bool,
) -> Vec<Figure> {
    let best = contest.best(value, bears);
    let ours = ids.into_iter().zip(Kind::OURS);
    let figures = ours.map(|(id, kind)| {
        let rounds = best.map(|best| contest.ratios(kind, best, value)).unwrap_or_default();
        let best = best.map_or_else(|| "nobody".to_owned(), |best| best.to_string());
        let what = format!("{what}: {kind} / {best}");
        Figure { id, what, unit: "x", line: Line::AtLeast(line), rounds }
    });
    figures.collect()
}

/// As it is, with the profile of who falls short; at 32 producers a Redis that is busy will do as well, since
/// more is promised of each job.
fn pushed(contest: &Contest, ids: [&'static str; 2], line: f64, what: &str) -> Vec<Figure> {
    let mut figures = beside(contest, ids, line, what, |window| window.rate, |_| true);
    for (figure, kind) in figures.iter_mut().zip(Kind::OURS) {
        if figure.verdict().reached || figure.rounds.is_empty() {
            continue;
        }
        profile(kind, contest.windows(kind));
        let core = median(&contest.rounds(kind, |window| window.core));
        if line < 1.0 {
            println!(
                "  {kind}: {} x falls short; Redis is busy for {} of a core",
                short(figure.value()),
                short(core)
            );
            if core >= BUSY {
                figure.what += &format!(" ({} x)", short(figure.value()));
                figure.rounds = contest.rounds(kind, |window| line * window.core / BUSY);
            }
        }
    }
    figures
}

/// Where Redis's time goes, by command. What scripts call is in their time too.
fn profile(kind: Kind, windows: &[Window]) {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, (calls, micros)) in windows.iter().flat_map(|window| &window.profile) {
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + calls, sum.1 + micros);
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, (calls, _))| *calls > 0).collect();
    sums.sort_unstable_by_key(|(_, (_, micros))| std::cmp::Reverse(*micros));
    let header =
        [format!("{kind}, by command"), "calls".into(), "us in all".into(), "us each".into()];
    let rows = sums.into_iter().take(12).map(|(name, (calls, micros))| {
        vec![
            name.to_owned(),
            calls.to_string(),
            micros.to_string(),
            short(float(micros) / float(calls)),
        ]
    });
    report::table(&[header.to_vec()].into_iter().chain(rows).collect::<Vec<_>>());
}

/// A window of so many producers.
fn push(stage: &mut Stage, kind: Kind, producers: usize) -> Outcome<Window> {
    stage.bench.server.flush()?;
    let window = clock::nanos(stage.bench.pace.window);
    let plan = Plan::push(kind, stage.bench.server.port(), producers);
    let plan = Plan { window, resources: RESOURCES, ..plan };
    let mut processes = [stage.process(&plan)?];
    let counted = stage.bench.count(&mut processes)?;
    let [process] = &mut processes;
    let pushed: Pushed = process.json()?;
    let left = crate::queue::left(&mut stage.bench.server, kind)?;
    let mut seen = Window { p50: pushed.p50, p99: pushed.p99, ..Window::default() };
    seen.rate = float(pushed.counted) / stage.bench.pace.window.as_secs_f64();
    counts(&mut seen, &counted.before, &counted.after, float(pushed.counted));
    seen.fault = stored(&pushed, left);
    Ok(seen)
}

fn counts(window: &mut Window, before: &Counts, after: &Counts, jobs: f64) {
    window.core = after.core_since(before);
    let since = |of: &BTreeMap<String, u64>, name: &str, now: u64| {
        now.saturating_sub(of.get(name).copied().unwrap_or(0))
    };
    for (name, calls) in &after.calls {
        let calls = since(&before.calls, name, *calls);
        let micros = after.micros.get(name).copied().unwrap_or(0);
        let micros = since(&before.micros, name, micros);
        window.profile.insert(name.clone(), (calls, micros));
    }
    window.run = float(window.profile.values().map(|(calls, _)| calls).sum()) / jobs;
    window.micros = (after.cpu - before.cpu) * 1e6 / jobs;
}

/// What was answered is stored, and nothing else.
fn stored(pushed: &Pushed, left: Left) -> Option<String> {
    if let Some(first) = &pushed.first_failure {
        return Some(format!("{} pushes FAILED, the first: {first}", pushed.failed));
    }
    (left != Left { waiting: pushed.pushed, ..Left::default() })
        .then(|| format!("{} pushes were answered, and the server has {left:?}", pushed.pushed))
}

/// A backlog is made, and then run by one process. The plan says by whom, and how many at once.
pub(super) fn drain(stage: &mut Stage, plan: &Plan) -> Outcome<Window> {
    stage.bench.server.flush()?;
    let (kind, jobs) = (plan.kind, plan.kind.backlog(stage.sizes.backlog));
    let push = Plan { jobs, tasks: PRODUCERS, resources: RESOURCES, ..plan.clone() };
    let pushed = stage.pushed(&push)?;
    let left = crate::queue::left(&mut stage.bench.server, kind)?;
    if let Some(fault) = stored(&pushed, left) {
        return Ok(Window { fault: Some(fault), ..Window::default() });
    }
    let run = Plan::run(kind, plan.port, plan.tasks, jobs);
    let before = stage.bench.server.counts()?;
    let mut worker = stage.process(&run)?;
    worker.ready()?;
    worker.tell(&clock::now().to_string())?;
    if worker.line()? != "done" {
        return Err("the worker did not say that it is done".into());
    }
    let after = stage.bench.server.counts()?;
    let left = stage.settled(kind)?;
    worker.tell("end")?;
    let ran: Ran = worker.json()?;
    let (running, pushing) = (ran.last - ran.first, pushed.ended - pushed.began);
    let mut seen = Window {
        rate: float(ran.ran) * 1e9 / float(running),
        both: float(ran.ran) * 1e9 / float(running + pushing),
        fault: fault(jobs, &pushed, &ran, left),
        ..Window::default()
    };
    counts(&mut seen, &before, &after, float(ran.ran));
    // Of the time in which jobs ran: the process before and after it is not what keeps Redis busy.
    seen.core = (after.cpu - before.cpu) * 1e9 / float(running);
    Ok(seen)
}
