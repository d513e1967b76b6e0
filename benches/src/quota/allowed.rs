//! Figures 2 and 3: requests within their quota, on one key and on many.

use super::contest::{Contest, PLENTY, Trial};
use crate::{bench::Bench, figure::Figure, http::limited::Kind, outcome::Outcome, report};

const HOT: Trial = Trial { processes: 1, connections: 64, keys: 1, limit: PLENTY };
const MANY: Trial = Trial { processes: 1, connections: 64, keys: 100_000, limit: PLENTY };

/// Bare, ours and the peers, in both frameworks.
pub(super) const EVERYBODY: [Kind; 9] = [
    Kind::BareAxum,
    Kind::LayerAxum,
    Kind::TowerRateLimiter,
    Kind::ByHand,
    Kind::TowerGovernor,
    Kind::BareActix,
    Kind::LayerActix,
    Kind::Extensible,
    Kind::Limitation,
];

const AXUM: Kind = Kind::LayerAxum;
const ACTIX: Kind = Kind::LayerActix;

pub(super) fn hot_key(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("2. Allowed: one key, 64 connections");
    let contest = Contest::run(bench, &HOT, &EVERYBODY)?;
    Ok(vec![
        contest.figure("2a", [AXUM, Kind::BareAxum], 0.85, "one key"),
        contest.figure("2b", [ACTIX, Kind::BareActix], 0.85, "one key"),
    ])
}

pub(super) fn many_keys(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("3. Allowed: 100,000 keys, 64 connections");
    let contest = Contest::run(bench, &MANY, &EVERYBODY)?;
    Ok(vec![
        contest.figure("3a", [AXUM, Kind::TowerRateLimiter], 1.3, "many keys"),
        contest.figure("3b", [AXUM, Kind::BareAxum], 0.70, "many keys"),
        contest.figure("3c", [ACTIX, Kind::BareActix], 0.70, "many keys"),
    ])
}
