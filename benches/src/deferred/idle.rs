//! Line 4: what a fleet of workers asks of the server while there is nothing to do. All fleets are idle at the
//! same time, each with a server of its own.

use std::thread;

use super::stage::Stage;
use crate::{
    clock,
    figure::{Figure, Line, short},
    outcome::Outcome,
    process::Process,
    queue::{Kind, Plan},
    redis::Server,
    report,
    sent::{Calls, Monitor},
    stats::median,
};

/// Workers beyond the first, for what each of them adds.
const MORE: usize = 4;

/// Who has just come still has something to say.
const ARRIVED: std::time::Duration = std::time::Duration::from_secs(2);

struct Fleet {
    kind: Kind,
    workers: Vec<Process>,
    server: Server,
    windows: Vec<Calls>,
}

pub(super) fn run(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    let (length, rounds) = (stage.sizes.idle, stage.bench.pace.rounds);
    report::title(&format!("4. Idle workers: commands per second, {rounds} times {length:?}"));
    let mut fleets = fleets(stage);
    thread::sleep(ARRIVED);
    for round in 0..rounds {
        let monitors = fleets.iter().map(|fleet| Monitor::start(fleet.server.port()));
        let monitors = monitors.collect::<Outcome<Vec<_>>>()?;
        clock::sleep_until(clock::now() + clock::nanos(length));
        for (fleet, monitor) in fleets.iter_mut().zip(monitors) {
            let total = monitor.stop()?.total();
            let each = |calls: f64| calls / length.as_secs_f64();
            fleet.windows.push(Calls { sent: each(total.sent), run: each(total.run) });
        }
        report::progress(round + 1, rounds);
    }
    print(&fleets);
    Ok(figures(&fleets))
}

/// One and several workers of everybody.
fn fleets(stage: &mut Stage) -> Vec<Fleet> {
    let mut fleets = Vec::new();
    for kind in Kind::OURS.into_iter().chain(Kind::PEERS) {
        for workers in [1, 1 + MORE] {
            if !stage.is_there(kind) {
                continue;
            }
            match fleet(stage, kind, workers) {
                Ok(fleet) => fleets.push(fleet),
                Err(error) => stage.leave_out(kind, &error.to_string()),
            }
        }
    }
    fleets
}

fn fleet(stage: &Stage, kind: Kind, workers: usize) -> Outcome<Fleet> {
    let server = Server::start()?;
    let plan = Plan::run(kind, server.port(), 1, 0);
    let start = |number| {
        let mut process = stage.process(&Plan { number, ..plan.clone() })?;
        process.ready()?;
        Ok(process)
    };
    let workers = (0..workers as u64).map(start).collect::<Outcome<Vec<_>>>()?;
    Ok(Fleet { kind, workers, server, windows: Vec::new() })
}

fn rounds(fleet: &Fleet, of: fn(&Calls) -> f64) -> Vec<f64> {
    fleet.windows.iter().map(of).collect()
}

fn print(fleets: &[Fleet]) {
    let header = ["median of the rounds", "workers", "sent/s", "run/s, in scripts too"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for fleet in fleets {
        rows.push(vec![
            fleet.kind.to_string(),
            fleet.workers.len().to_string(),
            short(median(&rounds(fleet, |calls| calls.sent))),
            short(median(&rounds(fleet, |calls| calls.run))),
        ]);
    }
    report::table(&rows);
}

/// Those inside scripts counted.
fn figures(fleets: &[Fleet]) -> Vec<Figure> {
    let run = |kind: Kind, workers: usize| {
        let fleet =
            fleets.iter().find(|fleet| fleet.kind == kind && fleet.workers.len() == workers);
        fleet.map(|fleet| rounds(fleet, |calls| calls.run)).unwrap_or_default()
    };
    let ids = [["4c", "4d"], ["4e", "4f"]];
    let of = |(ids, kind): ([&'static str; 2], Kind)| {
        let (one, many) = (run(kind, 1), run(kind, 1 + MORE));
        let more = |(many, one): (&f64, &f64)| (many - one) / 4.0;
        let further = many.iter().zip(&one).map(more).collect();
        let figure = |id, what: &str, line, rounds| Figure {
            id,
            what: format!("{kind}: commands run per second, {what}"),
            unit: "",
            line: Line::AtMost(line),
            rounds,
        };
        [
            figure(ids[0], "one idle worker", 2.0, one),
            figure(ids[1], "each further one", 0.5, further),
        ]
    };
    ids.into_iter().zip([Kind::Requests, Kind::Tasks]).flat_map(of).collect()
}
