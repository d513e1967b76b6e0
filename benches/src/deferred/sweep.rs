//! What suits the peers best: how a backlog is made, how often apalis-redis looks and how many jobs it fetches,
//! and by how much bee-queue may put delayed jobs off. Written to `benches/SWEEP-DEFER.md`.

use std::{fmt::Write as _, fs, path::PathBuf};

use super::{Part, contest::Window, pickup, stage::Stage, throughput};
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

/// A fifth of a figure's: many settings are looked at, and differences that matter are large.
const BACKLOG: u64 = 10_000;

const DISTURBED: &str =
    "\nOther processes used the cores meanwhile: repeat it on a quiet machine.\n";

/// One question: what is varied, and what is best about it.
struct Question {
    title: &'static str,
    /// The figures that stand on what is chosen.
    part: Part,
    settings: Vec<(Kind, String, Setting)>,
    window: fn(&mut Stage, &Plan) -> Outcome<Window>,
    tasks: usize,
    delay: u64,
    value: fn(&Window) -> f64,
    more_is_better: bool,
}

/// Asks what these parts stand on; what others do is left as it was written before.
pub(crate) fn run(stage: &mut Stage, parts: &[Part]) -> Outcome<()> {
    stage.sizes.backlog = BACKLOG;
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("SWEEP-DEFER.md");
    let before = fs::read_to_string(&file).unwrap_or_default();
    let mut text = format!(
        "# The settings that suit the queues best\n\n\
         Written by `cargo xtask bench defer --sweep`: {} alternating rounds, backlogs of {BACKLOG} jobs,\n\
         redis-server {}, medians, times in ms. Bold: the best, by which the setting is chosen\n\
         (`src/queue/setting.rs`). Where the spreads of two overlap, the choice is not sharp. All else is as\n\
         their documentation has it: finished jobs are kept, bee-queue neither stores jobs in the process nor\n\
         sends events.\n",
        stage.bench.pace.rounds,
        stage.bench.server.version()?,
    );
    for question in questions() {
        let title = question.title;
        write!(text, "\n## {title}\n\n")?;
        if parts.contains(&question.part) {
            report::title(title);
            let quiet = quiet::check();
            text += HEADER;
            text += &rows(stage, &question)?;
            text += if quiet && quiet::check() { "" } else { DISTURBED };
        } else {
            text += section(&before, title).unwrap_or("Not asked yet.\n");
        }
    }
    fs::write(&file, text)?;
    println!("\nwritten: {}", file.display());
    Ok(())
}

/// What stands under a title.
fn section<'a>(text: &'a str, title: &str) -> Option<&'a str> {
    let (_, from) = text.split_once(&format!("\n## {title}\n\n"))?;
    Some(from.find("\n## ").map_or(from, |end| &from[..end]))
}

fn questions() -> Vec<Question> {
    let fills = Kind::PEERS.into_iter().flat_map(|kind| {
        [1, 100, 500]
            .map(|fill| (kind, format!("{fill} jobs a call"), Setting { fill, ..Setting::BEST }))
    });
    let apalis = Kind::ApalisRedis;
    let batches = [32, 100, 500]
        .map(|batch| (apalis, format!("batches of {batch}"), Setting { batch, ..Setting::BEST }));
    let ones = [1, 32, 100, 500]
        .map(|batch| (apalis, format!("batches of {batch}"), Setting { batch, ..Setting::BEST }));
    let polls = [1, 5, 25, 100]
        .map(|poll| (apalis, format!("a look every {poll} ms"), Setting { poll, ..Setting::BEST }));
    let bee = Kind::BeeQueue;
    let debounces = [1, 100, 1_000].map(|debounce| {
        (bee, format!("put off by {debounce} ms"), Setting { debounce, ..Setting::BEST })
    });
    vec![
        drained(
            "Pushed, run and acknowledged at concurrency 32: jobs/s, by how the backlog is made",
            fills.collect(),
            32,
        ),
        drained("The same of apalis-redis, by how many it fetches", batches.to_vec(), 32),
        drained("The same at concurrency 1", ones.to_vec(), 1),
        late(
            "Idle queue of apalis-redis: from the push to the start, by how often it looks",
            polls.to_vec(),
            0,
        ),
        late(
            "Delayed by 1 s in bee-queue: how late, by how much it may put off",
            debounces.to_vec(),
            1_000,
        ),
    ]
}

fn drained(title: &'static str, settings: Vec<(Kind, String, Setting)>, tasks: usize) -> Question {
    Question {
        title,
        part: Part::Throughput,
        settings,
        window: throughput::drain,
        tasks,
        delay: 0,
        value: |window| window.both,
        more_is_better: true,
    }
}

fn late(title: &'static str, settings: Vec<(Kind, String, Setting)>, delay: u64) -> Question {
    Question {
        title,
        part: Part::Pickup,
        settings,
        window: pickup::with,
        tasks: 1,
        delay,
        value: |window| window.p50,
        more_is_better: false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_again_stays() {
        let text = "# All\n\n## One\n\na\n\nb\n\n## Two\n\nc\n";
        assert_eq!(section(text, "One"), Some("a\n\nb\n"));
        assert_eq!(section(text, "Two"), Some("c\n"));
        assert_eq!(section(text, "Three"), None);
    }

    #[test]
    fn titles_are_distinct() {
        let titles: Vec<_> = questions().iter().map(|question| question.title).collect();
        let distinct: std::collections::BTreeSet<_> = titles.iter().collect();
        assert_eq!(distinct.len(), titles.len());
    }
}
