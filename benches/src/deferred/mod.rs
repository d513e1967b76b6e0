//! The numbered figures of deferral, one file for each question.

mod contest;
mod depth;
mod idle;
mod instructions;
mod memory;
mod pickup;
mod scripts;
mod stage;
mod sweep;
mod throughput;

pub(crate) use self::{stage::Stage, sweep::run as sweep};
use crate::{args, figure::Figure, outcome::Outcome, report};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Pickup,
    Throughput,
    Depth,
    Memory,
    Idle,
    Instructions,
}

impl args::Part for Part {
    const ALL: &'static [(&'static str, Self)] = &[
        ("1", Self::Pickup),
        ("2", Self::Throughput),
        ("3", Self::Depth),
        ("memory", Self::Memory),
        ("idle", Self::Idle),
        ("instructions", Self::Instructions),
    ];

    const USAGE: &'static str = "\
usage: cargo xtask bench defer [--check] [--rounds N] [--only 1,2,3,memory,idle,instructions] [--quick]
       cargo xtask bench defer --sweep [--only 1,2]

  --check     exit 1 if a numbered figure falls short, and name it; needs at least 9 rounds
  --rounds N  alternating rounds of each comparison; default 9
  --only      these figures alone; memory, idle and instructions are the parts of 4
  --quick     3 rounds of small loads, to see that it runs: nothing to be judged by
  --sweep     look for the settings that suit the peers best, and write benches/SWEEP-DEFER.md; with --only, what
              the settings for the other figures are chosen by stays as it is there";
}

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(stage: &mut Stage, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in <Part as args::Part>::all().into_iter().filter(|part| parts.contains(part)) {
        let figures = match part {
            Part::Pickup => pickup::run(stage)?,
            Part::Throughput => throughput::run(stage)?,
            Part::Depth => depth::run(stage)?,
            Part::Memory => memory::run(stage)?,
            Part::Idle => idle::run(stage)?,
            Part::Instructions => instructions::run(stage)?,
        };
        report::figures(&figures);
        all.extend(figures);
    }
    Ok(all)
}
