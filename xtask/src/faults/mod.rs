//! `cargo xtask faults`: every numbered fault, what shows that it is survived, and the worst that was seen.

mod rows;
mod suite;
mod table;

use std::process::ExitCode;

use clap::ValueEnum;

use self::{
    rows::{Row, Topology},
    suite::Suite,
};
use crate::{redis_server, shell};

/// Random faults, and the checks of what all processes wrote down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum History {
    Locks,
    Deferred,
    Quota,
    Tasks,
    /// All at once, with memory, files, tasks and keys compared
    Soak,
}

impl History {
    const ENDING_THE_TABLE: [Self; 4] = [Self::Locks, Self::Deferred, Self::Quota, Self::Tasks];

    /// Of the program of the histories.
    fn name(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Deferred => "deferred",
            Self::Quota => "quota",
            Self::Tasks => "tasks",
            Self::Soak => "soak",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(crate) struct Args {
    /// Run random faults alone
    #[arg(value_enum, conflicts_with_all = ["row", "topology", "runs"])]
    history: Option<History>,
    /// Run this row alone: `7` of each table, `l7` of that of locks, `d7` of deferral, `q7` of quotas
    #[arg(long)]
    row: Option<String>,
    /// Run the rows of this topology alone
    #[arg(long, value_enum)]
    topology: Option<Topology>,
    /// How often each test runs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seconds of each history; 0 leaves them out [default: 20 after the table, 60 alone]
    #[arg(long)]
    seconds: Option<u64>,
    /// The same in minutes
    #[arg(long, conflicts_with = "seconds", requires = "history")]
    minutes: Option<u64>,
    /// Of the random faults
    #[arg(long)]
    seed: Option<u64>,
}

/// Exit code 1 for a violation, 2 for what was asked wrongly.
pub(crate) fn run(args: &Args) -> ExitCode {
    if let Some(which) = args.history {
        return with_server(|| history(which, args));
    }
    let rows: Vec<_> = rows::all().filter(|row| is_wished(row, args)).collect();
    if rows.is_empty() {
        return crate::refused("There is no such row.");
    }
    with_server(|| show(args, rows))
}

fn with_server(run: impl FnOnce() -> ExitCode) -> ExitCode {
    redis_server::ensure().map_or_else(
        |sentence| {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        },
        |()| run(),
    )
}

fn show(args: &Args, rows: Vec<&'static Row>) -> ExitCode {
    let suite = match Suite::build() {
        Ok(suite) => suite,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    let mut found = Vec::new();
    for row in rows {
        found.push(suite.row(row, args.runs));
        table::progress(&found);
    }
    let seconds = args.seconds.unwrap_or(20);
    if args.row.is_none() && seconds > 0 && args.topology.is_none_or(|of| of == Topology::Single) {
        for which in History::ENDING_THE_TABLE {
            found.push(suite.history(which.name(), seconds, args.seed));
            table::progress(&found);
        }
    }
    println!("\n{}", table::all(&found));
    if found.iter().any(table::Found::is_bad) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Its exit code is ours: 0, or 1 for a check that failed, or 2 for what was asked wrongly.
fn history(which: History, args: &Args) -> ExitCode {
    let program =
        ["run", "--quiet", "--package", "lockgate-tests", "--bin", "lockgate-faults", "--"];
    let mut command = shell::cargo(program);
    command.arg(which.name());
    for (option, value) in
        [("--seconds", args.seconds), ("--minutes", args.minutes), ("--seed", args.seed)]
    {
        if let Some(value) = value {
            command.args([option, &value.to_string()]);
        }
    }
    shell::announce(&command);
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn is_wished(row: &Row, args: &Args) -> bool {
    let number = row.number.to_string();
    let name = row.name();
    args.row.as_ref().is_none_or(|wished| *wished == number || *wished == name)
        && args.topology.is_none_or(|wished| row.topology == wished)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use clap::Parser;

    use super::{rows::Target, *};
    use crate::shell::root;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(words: &[&str]) -> Option<Args> {
        Line::try_parse_from([&["faults"], words].concat()).ok().map(|line| line.args)
    }

    #[test]
    fn options_are_read() {
        let all = ["--row", "l7", "--topology", "cluster", "--runs", "3", "--seed", "5"];
        let args = read(&all).unwrap();
        assert_eq!((args.row.as_deref(), args.topology), (Some("l7"), Some(Topology::Cluster)));
        assert_eq!((args.runs, args.seed, args.history), (3, Some(5), None));
        let args = read(&["soak", "--minutes", "2"]).unwrap();
        assert_eq!((args.history, args.minutes), (Some(History::Soak), Some(2)));
        for wrong in [&["--row"][..], &["--runs", "0"], &["--topology", "mesh"], &["x", "y"]] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn rows_are_chosen_by_number_and_by_name() {
        let chosen = |row: &str| {
            let args = read(&["--row", row]).unwrap();
            rows::all().filter(|row| is_wished(row, &args)).count()
        };
        assert!(chosen("7") > chosen("l7") && chosen("l7") > 0);
        assert_eq!(chosen("l99"), 0);
    }

    /// No number is left out: 25 of locks, 18 of deferral, and the promises of quotas.
    #[test]
    fn every_numbered_row_is_there() {
        for (table, most) in [('l', 25), ('d', 18), ('q', 12)] {
            let of = rows::all().filter(|row| row.table == table);
            let numbers: BTreeSet<u8> = of.map(|row| row.number).collect();
            assert_eq!(numbers, (1..=most).collect(), "{table}");
        }
        let reasoned = |row: &Row| !row.by.is_empty() || !row.not_here.is_empty();
        assert!(rows::all().all(reasoned), "a row that is not run says why");
    }

    /// A test that was renamed is missed here, and not only by a run that takes minutes. (One that went to another module is
    /// not; the run says that there is no such test.)
    #[test]
    fn every_test_that_is_named_is_there() {
        let mut names = BTreeSet::new();
        for folder in ["src", "tests"] {
            collect(&root().join(folder), &mut names);
        }
        for row in rows::all() {
            for (_, filter) in row.by {
                let mut parts = filter.split("::").collect::<Vec<_>>();
                parts.retain(|part| !part.is_empty() && !part.ends_with("_on_redis"));
                let known = |part: &&&str| names.iter().any(|name| name.contains(**part));
                let missing: Vec<_> = parts.iter().filter(|part| !known(part)).collect();
                assert!(missing.is_empty(), "row {}: {missing:?}", row.name());
            }
        }
    }

    /// What is all about faults, and which program has it.
    const OF_FAULTS: [(Target, &str); 3] = [
        (Target::Faults, "tests/faults"),
        (Target::Deferral, "tests/deferral"),
        (Target::Quorum, "tests/quorum"),
    ];
    const OF_REDIS: [&str; 19] = [
        "cluster",
        "concerns",
        "crowd",
        "dead",
        "disks",
        "drops",
        "ends",
        "faults",
        "forgotten",
        "late",
        "mends",
        "refusals",
        "replicas",
        "replies",
        "runtimes",
        "sentinel",
        "silent",
        "versions",
        "wakes",
    ];

    /// Mistakes, and what is so without any fault.
    const NO_FAULTS: [&str; 1] =
        ["faults::bad_urls_are_refused_with_a_sentence_that_keeps_the_password"];

    /// A test that no row has is not run by `cargo xtask faults`, whatever FAULTS.md says.
    #[test]
    fn every_test_of_a_fault_is_in_a_row() {
        let mut tests = Vec::new();
        for (target, of) in OF_FAULTS {
            tests_of(&root().join(of), "", target, &mut tests);
        }
        for of in OF_REDIS {
            let path = root().join("src/store/redis/tests").join(of);
            let prefix = format!("store::redis::tests::{of}::");
            tests_of(&path, &prefix, Target::Unit, &mut tests);
        }
        assert!(tests.len() > 150, "{} tests were found", tests.len());
        let is_in_a_row = |target: Target, name: &str| {
            let mut filters = rows::all().flat_map(|row| row.by);
            filters.any(|(of, filter)| *of == target && name.contains(filter))
                || NO_FAULTS.iter().any(|other| name.ends_with(other))
        };
        let missing: Vec<_> =
            tests.iter().filter(|(target, name)| !is_in_a_row(*target, name)).collect();
        assert!(missing.is_empty(), "in no row: {missing:#?}");
    }

    /// The tests of a module: of its file, whose `mod.rs` it may be, and of those in its folder.
    fn tests_of(path: &Path, prefix: &str, target: Target, all: &mut Vec<(Target, String)>) {
        if let Ok(text) = fs::read_to_string(path.with_extension("rs")) {
            all.extend(tests_in(&text).map(|name| (target, format!("{prefix}{name}"))));
        }
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let name = entry.path().file_stem().unwrap().to_string_lossy().into_owned();
            let (path, deeper) = (path.join(&name), format!("{prefix}{name}::"));
            // A folder is that of the file beside it.
            if name == "mod" {
                tests_of(&path, prefix, target, all);
            } else if entry.path().is_file() || !path.with_extension("rs").exists() {
                tests_of(&path, &deeper, target, all);
            }
        }
    }

    /// Functions whose attribute says that they are tests.
    fn tests_in(text: &str) -> impl Iterator<Item = &str> {
        let after = text.split("test").skip(1).filter_map(|rest| {
            let rest = rest
                .strip_prefix(']')
                .or_else(|| rest.strip_prefix('(')?.split_once(")]").map(|(_, rest)| rest))?;
            rest.split_once("fn ")
        });
        let is_next = |between: &str| !between.contains(['{', ';']);
        after
            .filter(move |(between, _)| is_next(between))
            .filter_map(|(_, rest)| rest.split(['(', '<']).next())
    }

    fn collect(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                names.insert(entry.file_name().to_string_lossy().into_owned());
                collect(&path, names);
            } else if path.extension().is_some_and(|end| end == "rs") {
                names.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
                let text = fs::read_to_string(&path).unwrap();
                let words = text.split("fn ").skip(1);
                names.extend(
                    words.filter_map(|rest| Some(rest.split(['(', '<']).next()?.to_owned())),
                );
            }
        }
    }
}
