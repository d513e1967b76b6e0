//! Which retry delay suits each peer best: the most holder changes a second. What it finds is written to
//! `benches/SWEEP.md`, and stands in `contestant/settings.rs`.

use std::{fmt::Write as _, fs, path::PathBuf, time::Duration};

use crate::{
    bench::Bench,
    contest::Contest,
    contestant::{Contender, Load, Who},
    figure::short,
    outcome::Outcome,
    report,
    scenario::{FOUR_PROCESSES, ONE_PROCESS, work_loads},
    stats::{median, spread},
    summary::Summary,
};

/// In milliseconds. rslock draws from 0..n, so 1 is a spin and 0 would panic; distkit's 0 is not to wait.
const DELAYS: [(Who, &[u64]); 4] = [
    (Who::Rslock, &[1, 2, 5, 10, 20]),
    (Who::Distkit, &[1, 2, 5, 20]),
    (Who::DistributedLockRedis, &[0, 1, 5, 20]),
    (Who::Raw, &[0, 1, 5, 20]),
];

const HEADER: &str = "\
| peer (retry delay) | changed/s | spread | acquired/s | p99 | longest wait | sent per acquisition |
|---|---|---|---|---|---|---|
";

pub(crate) fn run(bench: &mut Bench) -> Outcome<()> {
    let [together, split] = work_loads();
    let loads = [
        ("Hot key, one process, 64 tasks, nothing inside", Load::HotKey, ONE_PROCESS),
        ("Hot key, 4 processes x 16 tasks, nothing inside", Load::Processes, FOUR_PROCESSES),
        ("Hot key, 16 tasks, 5 ms of work inside", Load::Work, together),
        ("Hot key, 4 processes x 4 tasks, 5 ms of work inside", Load::SplitWork, split),
    ];
    let mut text = introduction(bench)?;
    for (title, load, trial) in loads {
        report::title(title);
        let contest = Contest::between(bench, &trial, contenders())?;
        write!(text, "\n## {title}\n\n{HEADER}")?;
        for (who, _) in DELAYS {
            text += &rows(&contest, who, load);
        }
    }
    let file = file();
    fs::write(&file, text)?;
    println!("\nwritten: {}", file.display());
    Ok(())
}

fn contenders() -> Vec<Contender> {
    let all = DELAYS.iter().flat_map(|(who, delays)| delays.iter().map(|millis| (*who, *millis)));
    all.map(|(who, millis)| Contender { who, pause: Duration::from_millis(millis) }).collect()
}

fn introduction(bench: &mut Bench) -> Outcome<String> {
    Ok(format!(
        "# The retry delay that suits each peer best\n\n\
         Written by `cargo xtask bench locks --sweep`: {} alternating rounds of {:?}, redis-server {},\n\
         medians, times in ms. Bold: the most holder changes a second, by which the setting is chosen\n\
         (`src/contestant/settings.rs`). Where the spreads of two overlap, the choice is not sharp.\n",
        bench.pace.rounds,
        bench.pace.window,
        bench.server.version()?,
    ))
}

fn rows(contest: &Contest, who: Who, load: Load) -> String {
    let entries = || contest.entries.iter().filter(|(contender, _)| contender.who == who);
    let changed = |windows: &[Summary]| median(&values(windows, |window| window.changed));
    let best = entries().max_by(|a, b| changed(&a.1).total_cmp(&changed(&b.1)));
    let Some((best, _)) = best else {
        return String::new();
    };
    if *best != Contender::best(who, load) {
        println!("  NOTE: {best} does best here, and is not the setting in settings.rs");
    }
    entries().map(|(contender, windows)| row(contender, windows, contender == best)).collect()
}

fn row(contender: &Contender, windows: &[Summary], bold: bool) -> String {
    let column = |value: fn(&Summary) -> f64| short(median(&values(windows, value)));
    let (least, most) = spread(&values(windows, |window| window.changed));
    let mark = if bold { "**" } else { "" };
    format!(
        "| {mark}{contender}{mark} | {mark}{}{mark} | {}..{} | {} | {} | {} | {} |\n",
        column(|window| window.changed),
        short(least),
        short(most),
        column(|window| window.acquired),
        column(|window| window.p99),
        column(|window| window.longest),
        column(|window| window.sent),
    )
}

fn values(windows: &[Summary], value: impl Fn(&Summary) -> f64) -> Vec<f64> {
    windows.iter().map(value).collect()
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("SWEEP.md")
}
