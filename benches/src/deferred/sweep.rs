//! What suits the peers best: how a backlog is made, how often apalis-redis looks and how many jobs it fetches,
//! and by how much bee-queue may put delayed jobs off. Written to `benches/SWEEP-DEFER.md`.

use std::{fmt::Write as _, fs, path::PathBuf};

use super::{contest::Window, pickup, stage::Stage, throughput};
use crate::{
    figure::short,
    outcome::Outcome,
    queue::{Kind, Plan, Setting},
    quiet, report,
    stats::{median, spread},
};

const HEADER: &str = "\
| peer, setting | value | spread | p50 | p99 |
|---|---|---|---|---|
";

/// One question: what is varied, and what is best about it.
struct Question {
    title: &'static str,
    settings: Vec<(Kind, String, Setting)>,
    window: fn(&mut Stage, &Plan) -> Outcome<Window>,
    tasks: usize,
    delay: u64,
    value: fn(&Window) -> f64,
    more_is_better: bool,
}

pub(crate) fn run(stage: &mut Stage) -> Outcome<()> {
    let mut text = format!(
        "# The settings that suit the queues best\n\n\
         Written by `cargo xtask bench defer --sweep`: {} alternating rounds, redis-server {}, medians,\n\
         times in ms. Bold: the best, by which the setting is chosen (`src/queue/setting.rs`). Where the\n\
         spreads of two overlap, the choice is not sharp. All else is as their documentation has it:\n\
         finished jobs are kept, bee-queue neither stores jobs in the process nor sends events.\n",
        stage.bench.pace.rounds,
        stage.bench.server.version()?,
    );
    for question in questions() {
        report::title(question.title);
        write!(text, "\n## {}\n\n{HEADER}", question.title)?;
        text += &rows(stage, &question)?;
    }
    if !quiet::check() || !stage.bench.quiet {
        text +=
            "\nOther processes used the cores during this sweep: repeat it on a quiet machine.\n";
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("SWEEP-DEFER.md");
    fs::write(&file, text)?;
    println!("\nwritten: {}", file.display());
    Ok(())
}

fn questions() -> [Question; 4] {
    let fills = Kind::PEERS.into_iter().flat_map(|kind| {
        [1, 100, 500].map(|fill| {
            (kind, format!("{fill} jobs a call"), Setting { fill, ..Setting::best(kind) })
        })
    });
    let apalis = Kind::ApalisRedis;
    let batches = [32, 100, 500].map(|batch| {
        (apalis, format!("batches of {batch}"), Setting { batch, ..Setting::best(apalis) })
    });
    let polls = [1, 5, 25, 100].map(|poll| {
        (apalis, format!("a look every {poll} ms"), Setting { poll, ..Setting::best(apalis) })
    });
    let bee = Kind::BeeQueue;
    let debounces = [1, 100, 1_000].map(|debounce| {
        (bee, format!("put off by {debounce} ms"), Setting { debounce, ..Setting::best(bee) })
    });
    [
        Question {
            title: "Pushed, run and acknowledged at concurrency 32: jobs/s, by how the backlog is made",
            settings: fills.collect(),
            window: throughput::drain,
            tasks: 32,
            delay: 0,
            value: |window| window.both,
            more_is_better: true,
        },
        Question {
            title: "The same of apalis-redis, by how many it fetches",
            settings: batches.to_vec(),
            window: throughput::drain,
            tasks: 32,
            delay: 0,
            value: |window| window.both,
            more_is_better: true,
        },
        Question {
            title: "Idle queue of apalis-redis: from the push to the start, by how often it looks",
            settings: polls.to_vec(),
            window: pickup::with,
            tasks: 1,
            delay: 0,
            value: |window| window.p50,
            more_is_better: false,
        },
        Question {
            title: "Delayed by 1 s in bee-queue: how late, by how much it may put off",
            settings: debounces.to_vec(),
            window: pickup::with,
            tasks: 1,
            delay: 1_000,
            value: |window| window.p50,
            more_is_better: false,
        },
    ]
}

fn rows(stage: &mut Stage, question: &Question) -> Outcome<String> {
    let lanes: Vec<_> =
        question.settings.iter().filter(|(kind, ..)| stage.is_there(*kind)).collect();
    let rounds = stage.bench.pace.rounds;
    let windows = crate::contest::alternating(rounds, lanes.len(), |lane| {
        let (kind, _, setting) = lanes[lane];
        let plan = Plan::push(*kind, stage.bench.server.port(), question.tasks);
        let plan = Plan { delay: question.delay, setting: *setting, ..plan };
        Ok((question.window)(stage, &plan).map_err(|error| error.to_string()))
    })?;
    let mut text = String::new();
    let values: Vec<Vec<f64>> = windows
        .iter()
        .map(|windows| windows.iter().flatten().map(question.value).collect())
        .collect();
    for (lane, (kind, name, _)) in lanes.iter().enumerate() {
        let mine = median(&values[lane]);
        let rivals = lanes.iter().zip(&values).filter(|((other, ..), _)| other == kind);
        let best = rivals
            .map(|(_, values)| median(values))
            .all(|other| if question.more_is_better { mine >= other } else { mine <= other });
        let mark = if best { "**" } else { "" };
        let all = |of: fn(&Window) -> f64| {
            short(median(&windows[lane].iter().flatten().map(of).collect::<Vec<_>>()))
        };
        let (least, most) = spread(&values[lane]);
        let mut row = format!(
            "| {mark}{kind}, {name}{mark} | {mark}{}{mark} | {}..{} | {} | {} |\n",
            short(mine),
            short(least),
            short(most),
            all(|window| window.p50),
            all(|window| window.p99),
        );
        for error in windows[lane].iter().filter_map(|window| window.as_ref().err()).take(1) {
            row += &format!("| {kind}, {name}: {error} | | | | |\n");
        }
        print!("{row}");
        text += &row;
    }
    Ok(text)
}
