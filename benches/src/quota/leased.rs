//! Figure 4: four processes that share one key, and lease its quota.

use super::contest::{Contest, PLENTY, Trial};
use crate::{bench::Bench, figure::Figure, http::limited::Kind, outcome::Outcome, report};

const SHARED: Trial = Trial { processes: 4, connections: 64, keys: 1, limit: PLENTY };

const KINDS: [Kind; 3] = [Kind::BareAxum, Kind::LeasedAxum, Kind::LayerAxum];

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("4. Allowed: one key, 4 processes, 64 connections");
    let contest = Contest::run(bench, &SHARED, &KINDS)?;
    Ok(vec![contest.figure("4a", [Kind::LeasedAxum, Kind::BareAxum], 0.95, "4 processes")])
}
