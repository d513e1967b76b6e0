//! The numbered figures of the rate limiter, over HTTP, one file for each question.

mod allowed;
mod contest;
mod instructions;
mod latency;
mod leased;
mod refused;
mod sweep;

use crate::{args, bench::Bench, figure::Figure, outcome::Outcome, report};

pub(crate) use self::sweep::run as sweep;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Refused,
    HotKey,
    Keys,
    Leases,
    Instructions,
}

impl args::Part for Part {
    const ALL: &'static [(&'static str, Self)] = &[
        ("1", Self::Refused),
        ("2", Self::HotKey),
        ("3", Self::Keys),
        ("4", Self::Leases),
        ("5", Self::Instructions),
    ];

    const USAGE: &'static str = "\
usage: cargo xtask bench http [--check] [--rounds N] [--only 1,2,3,4,5] [--quick]
       cargo xtask bench http --instructions
       cargo xtask bench http --sweep

  --check         exit 1 if a numbered figure falls short, and name it; needs at least 9 rounds
  --rounds N      alternating rounds of each comparison; default 9
  --only          these figures alone
  --quick         3 rounds of short windows, to see that it runs: nothing to be judged by
  --instructions  the same as --only 5: instructions of a refusal, counted by valgrind
  --sweep         look for the settings that suit the peers best, and write benches/SWEEP-HTTP.md";
}

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(bench: &mut Bench, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in <Part as args::Part>::all().into_iter().filter(|part| parts.contains(part)) {
        let figures = match part {
            Part::Refused => refused::run(bench)?,
            Part::HotKey => allowed::hot_key(bench)?,
            Part::Keys => [allowed::many_keys(bench)?, latency::run(bench)?].concat(),
            Part::Leases => leased::run(bench)?,
            Part::Instructions => instructions::run(bench)?,
        };
        report::figures(&figures);
        all.extend(figures);
    }
    Ok(all)
}
