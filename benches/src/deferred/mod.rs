//! The numbered figures of deferral, one file for each question.

mod contest;
mod depth;
mod idle;
mod instructions;
mod memory;
mod pickup;
mod scripts;
mod stage;
mod throughput;

pub(crate) use self::stage::Stage;
use clap::ValueEnum;

use crate::{figure::Figure, outcome::Outcome, report};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    #[value(name = "1")]
    Pickup,
    #[value(name = "2")]
    Throughput,
    #[value(name = "3")]
    Depth,
    Memory,
    Idle,
    Instructions,
}

/// Runs these parts, prints each as it ends, and returns every figure.
pub(crate) fn run(stage: &mut Stage, parts: &[Part]) -> Outcome<Vec<Figure>> {
    let mut all = Vec::new();
    for part in parts {
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
