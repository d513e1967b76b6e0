//! The numbered figures, one file for each question.

mod hot;
mod http;
mod memory;
mod renewal;
mod uncontended;
mod work;

use crate::{args::Part, bench::Bench, figure::Figure, outcome::Outcome, report};

pub(crate) use self::hot::{FOUR_PROCESSES, ONE_PROCESS};
pub(crate) use self::work::loads as work_loads;

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(bench: &mut Bench, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in Part::ALL.into_iter().filter(|part| parts.contains(part)) {
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
