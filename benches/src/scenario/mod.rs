//! The numbered figures of the locks, one file for each question.

mod hot;
mod http;
mod memory;
mod renewal;
mod uncontended;
mod work;

use clap::ValueEnum;

use crate::{bench::Bench, figure::Figure, outcome::Outcome, report};

/// The numbered figures, and the memory that is reported beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    #[value(name = "1")]
    HotKey,
    #[value(name = "2")]
    Processes,
    #[value(name = "3")]
    Work,
    #[value(name = "4")]
    Uncontended,
    #[value(name = "5")]
    Http,
    Memory,
}

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(bench: &mut Bench, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in parts {
        let figures = match part {
            Part::HotKey => hot::one_process(bench)?,
            Part::Processes => hot::four_processes(bench)?,
            Part::Work => work::run(bench)?,
            Part::Uncontended => uncontended::run(bench)?,
            Part::Http => [http::run(bench)?, renewal::run(bench)?].concat(),
            Part::Memory => memory::run(bench).map(|()| Vec::new())?,
        };
        report::figures(&figures);
        all.extend(figures);
    }
    Ok(all)
}
