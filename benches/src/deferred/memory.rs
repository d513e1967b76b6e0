//! Line 4: what a job that waits takes of the server's memory.

use super::stage::Stage;
use crate::{
    clock,
    figure::{Figure, Line, short},
    outcome::Outcome,
    process::Process,
    queue::{Kind, Left, Plan, Pushed, left},
    report,
    stats::float,
};

const PRODUCERS: usize = 32;

pub(super) fn run(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    let jobs = stage.sizes.stored;
    report::title(&format!("4. Redis's memory for each of {jobs} jobs of 1 KiB that wait"));
    let mut rows = vec![["", "B per job"].map(str::to_owned).to_vec()];
    let mut figures = Vec::new();
    let requests = [("4a", 1, 2_100.0), ("4b", jobs, 2_300.0)];
    for (id, resources, line) in requests {
        let what = format!("{} (1 KiB + a head of 150 B), {resources} resources", Kind::Requests);
        let rounds = bytes(stage, Kind::Requests, jobs, resources, &what, &mut rows);
        let line = Line::AtMost(line);
        figures.push(Figure { id, what: format!("memory: {what}"), unit: "B", line, rounds });
    }
    for kind in [Kind::Tasks].into_iter().chain(Kind::PEERS) {
        bytes(stage, kind, jobs, 1, &kind.to_string(), &mut rows);
    }
    report::table(&rows);
    Ok(figures)
}

/// Memory differs by nothing from one time to the next, so once will do; nothing if it can't be done.
fn bytes(
    stage: &mut Stage,
    kind: Kind,
    jobs: u64,
    resources: u64,
    what: &str,
    rows: &mut Vec<Vec<String>>,
) -> Vec<f64> {
    if !stage.is_there(kind) {
        return Vec::new();
    }
    match measured(stage, kind, jobs, resources) {
        Ok(bytes) => {
            rows.push(vec![what.to_owned(), short(bytes)]);
            vec![bytes]
        }
        Err(error) => {
            stage.leave_out(kind, &error.to_string());
            Vec::new()
        }
    }
}

fn measured(stage: &mut Stage, kind: Kind, jobs: u64, resources: u64) -> Outcome<f64> {
    stage.bench.server.flush()?;
    let plan = Plan::push(kind, stage.bench.server.port(), PRODUCERS);
    let mut process = stage.process(&Plan { jobs, resources, ..plan })?;
    process.ready()?;
    // What is held to make requests wait is theirs who hold it.
    let before = stage.bench.server.used_memory()?;
    process.tell(&clock::now().to_string())?;
    let pushed: Pushed = process.json()?;
    let after = idle_memory(stage, &mut process)?;
    let there = left(&mut stage.bench.server, kind)?;
    if pushed.pushed != jobs || there != (Left { waiting: jobs, ..Left::default() }) {
        let first = pushed.first_failure.unwrap_or_default();
        return Err(format!("of {jobs} pushes the server has {there:?}; {first}").into());
    }
    Ok((float(after) - float(before)) / float(jobs))
}

/// Once the buffers of its connections have been given back.
fn idle_memory(stage: &mut Stage, _still_there: &mut Process) -> Outcome<u64> {
    let mut least = u64::MAX;
    for _ in 0..5 {
        std::thread::sleep(std::time::Duration::from_millis(200));
        least = least.min(stage.bench.server.used_memory()?);
    }
    Ok(least)
}
