//! Output of the benchmarks.

use std::io::{self, IsTerminal as _, Write as _};

use crate::{
    bench_figure::{BenchFigure, format_number},
    bench_runner::BenchRunner,
    lock_comparison::LockComparison,
    lock_contender::ContenderKind,
    lock_measurement::LockMeasurement,
    stats::{median, to_f64},
};

type LockColumn = (&'static str, fn(&LockMeasurement) -> f64);

/// Columns of a comparison of locks. Each is a median over the rounds; times are milliseconds.
const LOCK_COLUMNS: [LockColumn; 14] = [
    ("changes/s", |window| window.holder_changes_per_second),
    ("acquired/s", |window| window.acquired_per_second),
    ("p50", |window| window.p50),
    ("p99", |window| window.p99),
    ("longest", |window| window.longest),
    ("open wait", |window| window.longest_open_wait),
    ("sent/acq", |window| window.sent_per_acquire),
    ("executed/acq", |window| window.executed_per_acquire),
    ("task min", |window| to_f64(window.task_shares.fewest)),
    ("task max", |window| to_f64(window.task_shares.most)),
    ("process min", |window| to_f64(window.process_shares.fewest)),
    ("process max", |window| to_f64(window.process_shares.most)),
    ("work", |window| window.mean_work),
    ("busy share", |window| window.busy_share),
];

/// Header of the first column of every table.
pub(crate) const MEDIAN_HEADER: &str = "median of the rounds; times in ms";

pub(crate) fn print_title(text: &str) {
    println!("\n{text}");
}

/// Prints the progress to stderr if it is a terminal.
pub(crate) fn print_progress(round: usize, rounds: usize) {
    let mut out = io::stderr();
    if out.is_terminal() {
        let end = if round == rounds { "\r\u{1b}[K" } else { "" };
        let _ = write!(out, "\r  round {round} of {rounds}{end}");
        let _ = out.flush();
    }
}

/// Prints one row per contender, and the failures.
pub(crate) fn print_comparison(comparison: &LockComparison) {
    let mut rows = vec![header_row()];
    for (contender, measurements) in
        comparison.entries.iter().filter(|(contender, _)| contender.kind != ContenderKind::Ping)
    {
        rows.push(contender_row(&contender.to_string(), measurements));
    }
    print_table(&rows);
    for (_, message) in comparison.failures() {
        println!("  {message}");
    }
    print_ping(
        &comparison.round_values(ContenderKind::Ping, |window| window.p50),
        &comparison.round_values(ContenderKind::Ping, |window| window.p99),
    );
}

fn header_row() -> Vec<String> {
    let names = LOCK_COLUMNS.iter().map(|(name, _)| (*name).to_owned());
    [MEDIAN_HEADER.to_owned()].into_iter().chain(names).collect()
}

fn contender_row(name: &str, measurements: &[LockMeasurement]) -> Vec<String> {
    let cell = |(_, value): &LockColumn| {
        format_number(median(&measurements.iter().map(value).collect::<Vec<_>>()))
    };
    [name.to_owned()].into_iter().chain(LOCK_COLUMNS.iter().map(cell)).collect()
}

/// Prints the round trip times, without which absolute times mean little.
pub(crate) fn print_ping(p50: &[f64], p99: &[f64]) {
    let (p50, p99) = (format_number(median(p50)), format_number(median(p99)));
    println!("  PING in the same rounds: p50 {p50} ms, p99 {p99} ms");
}

/// Aligns the first column to the left and the others to the right.
pub(crate) fn print_table(rows: &[Vec<String>]) {
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

pub(crate) fn print_figures(figures: &[BenchFigure]) {
    for figure in figures {
        println!("{figure}");
    }
}

/// Prints a failure. A failure of lockgate is also recorded, repeated at the end, and fails
/// `--check`.
pub(crate) fn report_failure(bench: &mut BenchRunner, is_lockgate: bool, message: String) {
    println!("  {message}");
    if is_lockgate {
        bench.failures.push(message);
    }
}

/// Prints all figures and recorded failures. Returns true if every figure reaches its target and
/// nothing failed.
pub(crate) fn print_summary(figures: &[BenchFigure], bench: &BenchRunner) -> bool {
    print_title("All figures: median (range) of the rounds, target");
    print_figures(figures);
    println!();
    for failure in &bench.failures {
        println!("{failure}");
    }
    if !bench.is_undisturbed {
        println!("DISTURBED: other processes used the cores; run this again on an idle machine");
    }
    let missed: Vec<_> = figures.iter().filter(|figure| !figure.verdict().reached).collect();
    if missed.is_empty() {
        println!("all {} figures reach their targets", figures.len());
    } else {
        let ids: Vec<_> = missed.iter().map(|figure| figure.id).collect();
        println!("{} of {} figures fall short: {}", missed.len(), figures.len(), ids.join(", "));
    }
    missed.is_empty() && bench.failures.is_empty()
}
