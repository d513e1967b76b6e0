//! Line 3: whether a job costs more where many wait.

use std::collections::BTreeMap;

use super::{
    scripts::{self, Names, Times},
    stage::Stage,
};
use crate::{
    clock,
    figure::{Figure, Line, short},
    outcome::Outcome,
    process::Process,
    queue::{Done, Kind, Left, RigStart, Word, left},
    report,
    stats::{float, median, paired_ratios},
};

/// Waiting on one resource, where few do.
const FEW: u64 = 10;

/// Jobs whose claim and acknowledgement are counted, on one resource and over many.
const COUNTED: u64 = 2_000;

/// Jobs for each resource, and resources where few wait.
const EACH: u64 = 10;
const SMALL: u64 = 1_000;

/// Runs at once over many resources.
const AT_ONCE: u64 = 16;

/// In which p99.9 of every script has to be over.
const AT_MOST_MICROS: f64 = 5_000.0;

/// Redis's microseconds for one job, and how long it took on the clock.
#[derive(Debug, Clone, Copy)]
struct Cost {
    micros: f64,
    wall: f64,
}

/// A process that follows words, and what is waited for in the server.
struct Rig {
    process: Process,
}

impl Rig {
    fn start(stage: &mut Stage, jobs: u64) -> Outcome<Self> {
        stage.bench.server.flush()?;
        let start = RigStart { port: stage.bench.server.port(), jobs };
        let mut process = Process::start("rig", &start)?;
        process.ready()?;
        Ok(Self { process })
    }

    fn follow(&mut self, word: Word) -> Outcome<Done> {
        self.process.tell(&serde_json::to_string(&word)?)?;
        let done: Done = self.process.json()?;
        if done.wrong > 0 {
            return Err(format!("{} runs were not the first of their job", done.wrong).into());
        }
        Ok(done)
    }

    /// What Redis does for each of so many while a word is followed.
    fn cost(&mut self, stage: &mut Stage, word: Word, jobs: u64) -> Outcome<Cost> {
        let before = stage.bench.server.counts()?;
        let done = self.follow(word)?;
        let after = stage.bench.server.counts()?;
        // Of scripts alone: what they call is in their time.
        let of = |counts: &BTreeMap<String, u64>| {
            ["evalsha", "eval", "fcall"].iter().filter_map(|name| counts.get(*name)).sum::<u64>()
        };
        let micros = float(of(&after.micros) - of(&before.micros));
        Ok(Cost { micros: micros / float(jobs), wall: float(done.took) / 1e3 / float(jobs) })
    }
}

pub(super) fn run(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for question in [one_resource, many_resources] {
        match question(stage) {
            Ok(figures) => all.extend(figures),
            Err(error) => stage.leave_out(Kind::Requests, &error.to_string()),
        }
    }
    Ok(all)
}

fn figure(id: &'static str, what: String, line: f64, rounds: Vec<f64>) -> Figure {
    Figure { id, what, unit: "x", line: Line::AtMost(line), rounds }
}

fn table(rows: &[(String, Vec<Cost>)]) {
    let header = ["median of the rounds", "Redis us/job", "wall us/job"].map(str::to_owned);
    let rows = rows.iter().map(|(name, costs)| {
        let value = |of: fn(&Cost) -> f64| short(median(&costs.iter().map(of).collect::<Vec<_>>()));
        vec![name.clone(), value(|cost| cost.micros), value(|cost| cost.wall)]
    });
    report::table(&[header.to_vec()].into_iter().chain(rows).collect::<Vec<_>>());
}

fn ratios(ours: &[Cost], theirs: &[Cost], of: fn(&Cost) -> f64) -> Vec<f64> {
    let values = |costs: &[Cost]| costs.iter().map(of).collect::<Vec<_>>();
    paired_ratios(&values(ours), &values(theirs))
}

/// One line of one resource. It is made once; each round takes a part of it, and small lines in between.
fn one_resource(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    let deep = stage.sizes.deep;
    report::title(&format!(
        "3. Claim and acknowledgement: {deep} waiting on one resource, and {FEW}"
    ));
    let rounds = stage.bench.pace.rounds;
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        small.push(short_lines(stage)?);
    }
    let mut rig = Rig::start(stage, deep)?;
    rig.follow(Word::Hold { resources: 1 })?;
    rig.follow(Word::Send { from: 0, to: deep })?;
    holds(stage, Left { waiting: deep, ..Left::default() })?;
    rig.follow(Word::Release)?;
    rig.follow(Word::Work { concurrency: 1, begun: 1 })?;
    let part = COUNTED.min(deep / 20);
    for round in 1..=rounds {
        large.push(rig.cost(stage, Word::Let { runs: part, last: false }, part)?);
        let done = part * u64::try_from(round)?;
        holds(stage, Left { waiting: deep - done - 1, running: 1, done, other: 0 })?;
    }
    table(&[(format!("{FEW} waiting"), small.clone()), (format!("{deep} waiting"), large.clone())]);
    let what = |of: &str| format!("claim and ack, {of}: {deep} waiting / {FEW}");
    Ok(vec![
        figure("3a", what("Redis time"), 1.2, ratios(&large, &small, |cost| cost.micros)),
        figure("3b", what("wall"), 1.2, ratios(&large, &small, |cost| cost.wall)),
    ])
}

/// Many short lines of one resource, one after the other: of each of them as many claims and
/// acknowledgements as it is long, and neither the release before them nor the end after them.
fn short_lines(stage: &mut Stage) -> Outcome<Cost> {
    let lines = (COUNTED.min(stage.sizes.deep / 20) / FEW).max(1);
    let jobs = (FEW + 1) * lines;
    let mut rig = Rig::start(stage, jobs)?;
    let mut sum = Cost { micros: 0.0, wall: 0.0 };
    for line in 0..lines {
        let from = line * (FEW + 1);
        rig.follow(Word::Hold { resources: 1 })?;
        rig.follow(Word::Send { from, to: from + FEW + 1 })?;
        rig.follow(Word::Release)?;
        rig.follow(Word::Work { concurrency: 1, begun: 1 })?;
        let cost = rig.cost(stage, Word::Let { runs: FEW, last: false }, FEW)?;
        rig.follow(Word::Let { runs: 1, last: true })?;
        sum = Cost { micros: sum.micros + cost.micros, wall: sum.wall + cost.wall };
    }
    let left = stage.settled(Kind::Requests)?;
    same(left, Left { done: jobs, ..Left::default() })?;
    Ok(Cost { micros: sum.micros / float(lines), wall: sum.wall / float(lines) })
}

/// Ten on each of many resources, and of few. The large one is made once.
fn many_resources(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    let wide = stage.sizes.wide;
    report::title(&format!(
        "3. {wide} waiting over {} resources, and {SMALL} over {}",
        wide / EACH,
        SMALL / EACH
    ));
    let rounds = stage.bench.pace.rounds;
    let mut small = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // Half of them: with fewer, not every run of those at once finds a resource of its own.
        let part = SMALL / 2;
        let mut costs = Spread { jobs: SMALL, rounds: 1, part, watched: 0 }.costs(stage, None)?;
        small.0.append(&mut costs.0);
        small.1.append(&mut costs.1);
    }
    let part = COUNTED.min(wide / 100);
    let names = script_names(stage)?;
    let mut times = Times::default();
    let spread = Spread { jobs: wide, rounds, part, watched: part };
    let large = spread.costs(stage, Some(&mut times))?;
    let slowest = times.print(&names).into_iter().collect();
    table(&[
        (format!("enqueue, {SMALL} waiting"), small.0.clone()),
        (format!("enqueue, {wide} waiting"), large.0.clone()),
        (format!("claim and ack, {SMALL} waiting"), small.1.clone()),
        (format!("claim and ack, {wide} waiting"), large.1.clone()),
    ]);
    let what = |of: &str| format!("{of}: {wide} waiting / {SMALL}");
    let micros = |large: &[Cost], small: &[Cost]| ratios(large, small, |cost| cost.micros);
    let wall = |large: &[Cost], small: &[Cost]| ratios(large, small, |cost| cost.wall);
    Ok(vec![
        figure("3c", what("enqueue, Redis time"), 1.5, micros(&large.0, &small.0)),
        figure("3d", what("enqueue, wall"), 1.5, wall(&large.0, &small.0)),
        figure("3e", what("claim and ack, Redis time"), 1.5, micros(&large.1, &small.1)),
        figure("3f", what("claim and ack, wall"), 1.5, wall(&large.1, &small.1)),
        Figure {
            id: "3g",
            what: format!("p99.9 of the slowest script, {wide} waiting"),
            unit: "us",
            line: Line::AtMost(AT_MOST_MICROS),
            rounds: slowest,
        },
    ])
}

/// A little of everything, to hear which scripts there are.
fn script_names(stage: &mut Stage) -> Outcome<Names> {
    let mut rig = Rig::start(stage, 2)?;
    scripts::names(stage, |_| {
        rig.follow(Word::Hold { resources: 1 })?;
        rig.follow(Word::Send { from: 0, to: 2 })?;
        rig.follow(Word::Release)?;
        rig.follow(Word::Work { concurrency: 1, begun: 1 })?;
        rig.follow(Word::Let { runs: 1, last: false })?;
        rig.follow(Word::Let { runs: 1, last: true }).map(drop)
    })
}

/// So many jobs over a tenth as many resources.
#[derive(Debug, Clone, Copy)]
struct Spread {
    jobs: u64,
    rounds: usize,
    /// Jobs that are enqueued and claimed in each round.
    part: u64,
    /// Jobs more, for which the time of each script is looked at.
    watched: u64,
}

impl Spread {
    /// What it costs, once it is there, to enqueue the last parts of it, and then to run the first.
    fn costs(
        self,
        stage: &mut Stage,
        times: Option<&mut Times>,
    ) -> Outcome<(Vec<Cost>, Vec<Cost>)> {
        let Self { jobs, rounds, part, watched } = self;
        let counted = part * u64::try_from(rounds)?;
        let all = jobs + watched;
        let mut rig = Rig::start(stage, all)?;
        rig.follow(Word::Hold { resources: jobs / EACH })?;
        rig.follow(Word::Send { from: 0, to: jobs - counted })?;
        let (mut enqueues, mut claims) = (Vec::new(), Vec::new());
        for from in (jobs - counted..jobs).step_by(usize::try_from(part)?) {
            enqueues.push(rig.cost(stage, Word::Send { from, to: from + part }, part)?);
        }
        let mut unseen = Times::default();
        let times = times.unwrap_or(&mut unseen);
        let send = Word::Send { from: jobs, to: all };
        times.watch(stage, |_| rig.follow(send).map(drop))?;
        holds(stage, Left { waiting: all, ..Left::default() })?;
        rig.follow(Word::Release)?;
        let concurrency = usize::try_from(AT_ONCE)?;
        rig.follow(Word::Work { concurrency, begun: AT_ONCE })?;
        for _ in 0..rounds {
            claims.push(rig.cost(stage, Word::Let { runs: part, last: false }, part)?);
        }
        let runs = Word::Let { runs: watched, last: false };
        times.watch(stage, |_| rig.follow(runs).map(drop))?;
        let done = counted + watched;
        holds(stage, Left { waiting: all - done - AT_ONCE, running: AT_ONCE, done, other: 0 })?;
        Ok((enqueues, claims))
    }
}

/// Whether the server has just that.
fn holds(stage: &mut Stage, expected: Left) -> Outcome<()> {
    let give_up = clock::now() + 2_000_000_000;
    loop {
        let there = left(&mut stage.bench.server, Kind::Requests)?;
        if there == expected || clock::now() > give_up {
            return same(there, expected);
        }
    }
}

fn same(there: Left, expected: Left) -> Outcome<()> {
    if there == expected {
        return Ok(());
    }
    Err(format!("the server has {there:?} instead of {expected:?}").into())
}
