//! The numbered figures of the locks, one file for each question.

mod hot;
mod http;
mod memory;
mod renewal;
mod uncontended;
mod work;

use crate::{args, bench::Bench, figure::Figure, outcome::Outcome, report};

pub(crate) use self::hot::{FOUR_PROCESSES, ONE_PROCESS};
pub(crate) use self::work::loads as work_loads;

/// The numbered figures, and the memory that is reported beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    HotKey,
    Processes,
    Work,
    Uncontended,
    Http,
    Memory,
}

impl args::Part for Part {
    const ALL: &'static [(&'static str, Self)] = &[
        ("1", Self::HotKey),
        ("2", Self::Processes),
        ("3", Self::Work),
        ("4", Self::Uncontended),
        ("5", Self::Http),
        ("memory", Self::Memory),
    ];

    const USAGE: &'static str = "\
usage: cargo xtask bench locks [--check] [--rounds N] [--only 1,2,3,4,5,memory] [--quick]
       cargo xtask bench locks --sweep

  --check     exit 1 if a numbered figure falls short, and name it; needs at least 9 rounds
  --rounds N  alternating rounds of each comparison; default 9
  --only      these figures alone
  --quick     3 rounds of short windows, to see that it runs: nothing to be judged by
  --sweep     look for the retry delay that suits each peer best, and write benches/SWEEP.md";
}

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(bench: &mut Bench, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in <Part as args::Part>::all().into_iter().filter(|part| parts.contains(part)) {
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
