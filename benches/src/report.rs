//! What is printed.

use std::io::{self, IsTerminal as _, Write as _};

use crate::{
    bench::Bench,
    contest::Contest,
    contestant::Who,
    figure::{Figure, short},
    stats::{float, median},
    summary::Summary,
};

type Column = (&'static str, fn(&Summary) -> f64);

/// Medians over the rounds. Times in ms.
const COLUMNS: [Column; 14] = [
    ("changed/s", |window| window.changed),
    ("acquired/s", |window| window.acquired),
    ("p50", |window| window.p50),
    ("p99", |window| window.p99),
    ("longest", |window| window.longest),
    ("still waiting", |window| window.still_waiting),
    ("sent/acq", |window| window.sent),
    ("run/acq", |window| window.run),
    ("task min", |window| float(window.tasks.fewest)),
    ("task max", |window| float(window.tasks.most)),
    ("process min", |window| float(window.processes.fewest)),
    ("process max", |window| float(window.processes.most)),
    ("work", |window| window.work),
    ("busy", |window| window.busy),
];

/// Above the first column of every table.
pub(crate) const MEDIANS: &str = "median of the rounds; times in ms";

pub(crate) fn title(text: &str) {
    println!("\n{text}");
}

/// For people who wait, and not for files.
pub(crate) fn progress(round: usize, rounds: usize) {
    let mut out = io::stderr();
    if out.is_terminal() {
        let end = if round == rounds { "\r\u{1b}[K" } else { "" };
        let _ = write!(out, "\r  round {round} of {rounds}{end}");
        let _ = out.flush();
    }
}

/// One line for everybody, and what must not happen and did.
pub(crate) fn contest(contest: &Contest) {
    let mut rows = vec![header()];
    for (contender, windows) in contest.entries.iter().filter(|(one, _)| one.who != Who::Ping) {
        rows.push(row(&contender.to_string(), windows));
    }
    table(&rows);
    for (_, what) in contest.faults() {
        println!("  {what}");
    }
    ping(
        &contest.rounds(Who::Ping, |window| window.p50),
        &contest.rounds(Who::Ping, |window| window.p99),
    );
}

fn header() -> Vec<String> {
    let names = COLUMNS.iter().map(|(name, _)| (*name).to_owned());
    [MEDIANS.to_owned()].into_iter().chain(names).collect()
}

fn row(name: &str, windows: &[Summary]) -> Vec<String> {
    let value = |(_, value): &Column| short(median(&windows.iter().map(value).collect::<Vec<_>>()));
    [name.to_owned()].into_iter().chain(COLUMNS.iter().map(value)).collect()
}

/// Absolute times mean nothing without it.
pub(crate) fn ping(p50: &[f64], p99: &[f64]) {
    let (p50, p99) = (short(median(p50)), short(median(p99)));
    println!("  PING in the same rounds: p50 {p50} ms, p99 {p99} ms");
}

/// The first column to the left, all others to the right.
pub(crate) fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("  {}", cells.collect::<Vec<_>>().join("  "));
    }
}

pub(crate) fn figures(figures: &[Figure]) {
    for figure in figures {
        println!("{figure}");
    }
}

/// Said at once, and again at the end if it is ours.
pub(crate) fn fault(bench: &mut Bench, ours: bool, what: String) {
    println!("  {what}");
    if ours {
        bench.faults.push(what);
    }
}

/// All figures again, and whether all of them reach their line and nothing failed.
pub(crate) fn summary(figures: &[Figure], bench: &Bench) -> bool {
    title("All figures: median (spread) of the rounds, line to reach");
    self::figures(figures);
    println!();
    for fault in &bench.faults {
        println!("{fault}");
    }
    if !bench.quiet {
        println!(
            "DISTURBED: other processes used the cores meanwhile; run it again on a quiet machine"
        );
    }
    let short: Vec<_> = figures.iter().filter(|figure| !figure.verdict().reached).collect();
    if short.is_empty() {
        println!("all of {} figures reach their line", figures.len());
    } else {
        let names: Vec<_> = short.iter().map(|figure| figure.id).collect();
        println!("{} of {} figures fall short: {}", short.len(), figures.len(), names.join(", "));
    }
    short.is_empty() && bench.faults.is_empty()
}
