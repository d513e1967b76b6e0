//! `cargo xtask faults`: runs the tests of every numbered fault and reports verdicts and worst
//! figures.

mod fault_test_runner;
mod result_table;
mod rows;

use std::process::ExitCode;

use clap::ValueEnum;

use self::{
    fault_test_runner::FaultTestRunner,
    rows::{FaultRow, StoreTopology},
};
use crate::{redis_server_installation, shell};

/// Run of random faults, with checks over the records of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HistoryRun {
    Locks,
    Deferred,
    Quota,
    Tasks,
    /// All kinds at once, comparing memory, files, tasks and keys before and after
    Soak,
}

impl HistoryRun {
    const AFTER_TABLE: [Self; 4] = [Self::Locks, Self::Deferred, Self::Quota, Self::Tasks];

    /// Subcommand of the history program.
    fn subcommand(self) -> &'static str {
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
pub(crate) struct FaultTableArgs {
    /// Run random faults alone
    #[arg(value_enum, conflicts_with_all = ["row", "topology", "runs"])]
    history: Option<HistoryRun>,
    /// Run this row alone: `7` of every table, `l7` of locks, `d7` of deferral, `q7` of quotas
    #[arg(long)]
    row: Option<String>,
    /// Run the rows of this topology alone
    #[arg(long, value_enum)]
    topology: Option<StoreTopology>,
    /// Number of runs of each test
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seconds of each history; 0 skips them [default: 20 after the table, 60 alone]
    #[arg(long)]
    seconds: Option<u64>,
    /// Minutes of the history, in place of `--seconds`
    #[arg(long, conflicts_with = "seconds", requires = "history")]
    minutes: Option<u64>,
    /// Seed of the random faults
    #[arg(long)]
    seed: Option<u64>,
}

/// Returns exit code 1 for a violation and 2 for a usage error.
pub(crate) fn run(args: &FaultTableArgs) -> ExitCode {
    if let Some(history) = args.history {
        return run_with_redis(|| run_history(history, args));
    }
    let rows: Vec<_> = rows::all_rows().filter(|row| is_selected(row, args)).collect();
    if rows.is_empty() {
        return crate::usage_error("There is no such row.");
    }
    run_with_redis(|| run_table(args, rows))
}

fn run_with_redis(run: impl FnOnce() -> ExitCode) -> ExitCode {
    redis_server_installation::ensure_installed().map_or_else(
        |message| {
            eprintln!("{message}");
            ExitCode::FAILURE
        },
        |()| run(),
    )
}

fn run_table(args: &FaultTableArgs, rows: Vec<&'static FaultRow>) -> ExitCode {
    let runner = match FaultTestRunner::build() {
        Ok(runner) => runner,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let mut results = Vec::new();
    for row in rows {
        results.push(runner.run_row(row, args.runs));
        result_table::print_progress(&results);
    }
    let seconds = args.seconds.unwrap_or(20);
    if args.row.is_none()
        && seconds > 0
        && args.topology.is_none_or(|topology| topology == StoreTopology::Single)
    {
        for history in HistoryRun::AFTER_TABLE {
            results.push(runner.run_history(history.subcommand(), seconds, args.seed));
            result_table::print_progress(&results);
        }
    }
    println!("\n{}", result_table::format_table(&results));
    if results.iter().any(result_table::RowResult::is_violated) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Returns the exit code of the program: 0 for success, 1 for a failed check, 2 for a usage error.
fn run_history(history: HistoryRun, args: &FaultTableArgs) -> ExitCode {
    let program =
        ["run", "--quiet", "--package", "lockgate-tests", "--bin", "lockgate-faults", "--"];
    let mut command = shell::cargo_command(program);
    command.arg(history.subcommand());
    for (option, value) in
        [("--seconds", args.seconds), ("--minutes", args.minutes), ("--seed", args.seed)]
    {
        if let Some(value) = value {
            command.args([option, &value.to_string()]);
        }
    }
    shell::print_command(&command);
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn is_selected(row: &FaultRow, args: &FaultTableArgs) -> bool {
    let number = row.number.to_string();
    let name = row.id();
    args.row.as_ref().is_none_or(|wanted| *wanted == number || *wanted == name)
        && args.topology.is_none_or(|wanted| row.topology == wanted)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use clap::Parser;

    use super::{rows::TestTarget, *};
    use crate::shell::workspace_root;

    #[derive(Debug, Parser)]
    struct FaultTableCli {
        #[command(flatten)]
        args: FaultTableArgs,
    }

    fn parse_args(words: &[&str]) -> Option<FaultTableArgs> {
        FaultTableCli::try_parse_from([&["faults"], words].concat()).ok().map(|line| line.args)
    }

    #[test]
    fn options_and_histories_are_parsed() {
        let all = ["--row", "l7", "--topology", "cluster", "--runs", "3", "--seed", "5"];
        let args = parse_args(&all).unwrap();
        assert_eq!(
            (args.row.as_deref(), args.topology),
            (Some("l7"), Some(StoreTopology::Cluster))
        );
        assert_eq!((args.runs, args.seed, args.history), (3, Some(5), None));
        let args = parse_args(&["soak", "--minutes", "2"]).unwrap();
        assert_eq!((args.history, args.minutes), (Some(HistoryRun::Soak), Some(2)));
        for wrong in [&["--row"][..], &["--runs", "0"], &["--topology", "mesh"], &["x", "y"]] {
            assert_eq!(parse_args(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn rows_are_selected_by_number_or_id() {
        let chosen = |row: &str| {
            let args = parse_args(&["--row", row]).unwrap();
            rows::all_rows().filter(|row| is_selected(row, &args)).count()
        };
        assert!(chosen("7") > chosen("l7") && chosen("l7") > 0);
        assert_eq!(chosen("l99"), 0);
    }

    /// The numbers have no gaps: 25 of locks, 18 of deferral, and 12 guarantees of quotas.
    #[test]
    fn every_number_of_each_table_has_a_row() {
        for (table, most) in [('l', 25), ('d', 18), ('q', 12)] {
            let of = rows::all_rows().filter(|row| row.table == table);
            let numbers: BTreeSet<u8> = of.map(|row| row.number).collect();
            assert_eq!(numbers, (1..=most).collect(), "{table}");
        }
        let reasoned = |row: &FaultRow| !row.tests.is_empty() || !row.limitation.is_empty();
        assert!(rows::all_rows().all(reasoned), "a row that is not run says why");
    }

    /// Finds filters of renamed tests without running the tests. It does not find a test that moved
    /// to another module; `cargo xtask faults` reports that one.
    #[test]
    fn every_filter_names_an_existing_test() {
        let mut names = BTreeSet::new();
        for folder in ["src", "tests"] {
            collect_names(&workspace_root().join(folder), &mut names);
        }
        for row in rows::all_rows() {
            for (_, filter) in row.tests {
                let mut parts = filter.split("::").collect::<Vec<_>>();
                parts.retain(|part| !part.is_empty() && !part.ends_with("_on_redis"));
                let exists = |part: &&&str| names.iter().any(|name| name.contains(**part));
                let missing: Vec<_> = parts.iter().filter(|part| !exists(part)).collect();
                assert!(missing.is_empty(), "row {}: {missing:?}", row.id());
            }
        }
    }

    /// Folders in which every test provokes a fault, and the program that contains them.
    const FAULT_TEST_FOLDERS: [(TestTarget, &str); 3] = [
        (TestTarget::Faults, "tests/faults"),
        (TestTarget::Deferral, "tests/deferral"),
        (TestTarget::Quorum, "tests/quorum"),
    ];
    const REDIS_FAULT_TEST_MODULES: [&str; 19] = [
        "cluster",
        "dead_waiters",
        "disk_replication",
        "dropped_futures",
        "ended_runtimes",
        "holder_ends",
        "late_calls",
        "lost_data",
        "lost_replies",
        "lost_wakeups",
        "outage_costs",
        "queue_fairness",
        "replica_grants",
        "script_versions",
        "sentinel",
        "server_concerns",
        "server_faults",
        "server_refusals",
        "silent_servers",
    ];

    /// Tests of usage errors and of behaviour without a fault.
    const TESTS_WITHOUT_FAULT: [&str; 1] =
        ["server_faults::invalid_urls_are_rejected_without_showing_the_password"];

    /// `cargo xtask faults` does not run a test without a row, even if FAULTS.md lists it.
    #[test]
    fn every_fault_test_is_in_a_row() {
        let mut tests = Vec::new();
        for (target, of) in FAULT_TEST_FOLDERS {
            collect_tests(&workspace_root().join(of), "", target, &mut tests);
        }
        for of in REDIS_FAULT_TEST_MODULES {
            let path = workspace_root().join("src/store/redis/tests").join(of);
            let prefix = format!("store::redis::tests::{of}::");
            collect_tests(&path, &prefix, TestTarget::Unit, &mut tests);
        }
        assert!(tests.len() > 150, "{} tests were found", tests.len());
        let is_in_a_row = |target: TestTarget, name: &str| {
            let mut filters = rows::all_rows().flat_map(|row| row.tests);
            filters.any(|(of, filter)| *of == target && name.contains(filter))
                || TESTS_WITHOUT_FAULT.iter().any(|other| name.ends_with(other))
        };
        let missing: Vec<_> =
            tests.iter().filter(|(target, name)| !is_in_a_row(*target, name)).collect();
        assert!(missing.is_empty(), "in no row: {missing:#?}");
    }

    /// Collects the tests of a module: those of its file or `mod.rs`, and those of its folder.
    fn collect_tests(
        path: &Path,
        prefix: &str,
        target: TestTarget,
        all: &mut Vec<(TestTarget, String)>,
    ) {
        if let Ok(text) = fs::read_to_string(path.with_extension("rs")) {
            all.extend(test_function_names(&text).map(|name| (target, format!("{prefix}{name}"))));
        }
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let name = entry.path().file_stem().unwrap().to_string_lossy().into_owned();
            let (path, deeper) = (path.join(&name), format!("{prefix}{name}::"));
            // A folder is read with the file of the same name beside it.
            if name == "mod" {
                collect_tests(&path, prefix, target, all);
            } else if entry.path().is_file() || !path.with_extension("rs").exists() {
                collect_tests(&path, &deeper, target, all);
            }
        }
    }

    /// Returns the names of functions that have a test attribute.
    fn test_function_names(text: &str) -> impl Iterator<Item = &str> {
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

    fn collect_names(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                names.insert(entry.file_name().to_string_lossy().into_owned());
                collect_names(&path, names);
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
