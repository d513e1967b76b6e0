//! What suits the peers best: how tower-rate-limiter asks, and over how many connections a script of
//! one's own does. The others have nothing to choose. Written to `benches/SWEEP-HTTP.md`.

use std::{fmt::Write as _, fs, path::PathBuf};

use super::contest::{Contest, LITTLE, PLENTY, Trial, rounds, sent};
use crate::{
    bench::Bench,
    figure::short,
    http::limited::Kind,
    outcome::Outcome,
    report,
    stats::{median, spread},
};

const KINDS: [Kind; 6] = [
    Kind::BareAxum,
    Kind::TowerRateLimiter,
    Kind::TowerRateLimiterLua,
    Kind::ByHand(1),
    Kind::ByHand(2),
    Kind::ByHand(4),
];

const HEADER: &str = "\
| limiter | requests/s | spread | x bare | p50 | p99 | sent per request |
|---|---|---|---|---|---|---|
";

pub(crate) fn run(bench: &mut Bench) -> Outcome<()> {
    let trial = |keys, limit| Trial { processes: 1, connections: 64, keys, limit };
    let trials = [
        ("Refused, one key", trial(1, LITTLE)),
        ("Allowed, one key", trial(1, PLENTY)),
        ("Allowed, 100,000 keys", trial(100_000, PLENTY)),
    ];
    let mut text = introduction(bench)?;
    for (title, trial) in trials {
        report::title(title);
        let contest = Contest::run(bench, &trial, &KINDS)?;
        write!(text, "\n## {title}\n\n{HEADER}")?;
        for (kind, _) in contest.entries() {
            text += &row(&contest, kind);
        }
    }
    if !bench.quiet {
        text +=
            "\nOther processes used the cores during this sweep: repeat it on a quiet machine.\n";
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("SWEEP-HTTP.md");
    fs::write(&file, text)?;
    println!("\nwritten: {}", file.display());
    Ok(())
}

fn introduction(bench: &mut Bench) -> Outcome<String> {
    Ok(format!(
        "# The settings that suit the limiters best\n\n\
         Written by `cargo xtask bench http --sweep`: {} alternating rounds of {:?}, redis-server {},\n\
         64 connections, medians, times in ms. In the figures tower-rate-limiter asks by its transaction,\n\
         and the script by hand goes over one connection; where the spreads of two overlap, the choice is\n\
         not sharp.\n",
        bench.pace.rounds,
        bench.pace.window,
        bench.server.version()?,
    ))
}

fn row(contest: &Contest, kind: Kind) -> String {
    let windows = contest.windows(kind);
    let requests = rounds(windows, |load| load.requests);
    let (least, most) = spread(&requests);
    format!(
        "| {kind} | {} | {}..{} | {} | {} | {} | {} |\n",
        short(median(&requests)),
        short(least),
        short(most),
        short(median(&contest.ratios(kind, kind.bare()))),
        short(median(&rounds(windows, |load| load.p50))),
        short(median(&rounds(windows, |load| load.p99))),
        short(median(&sent(windows))),
    )
}
