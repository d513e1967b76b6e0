//! `cargo xtask faults`: every numbered fault, what shows that it is survived, and the worst that was seen.

mod rows;
mod suite;
mod table;

use std::process::ExitCode;

use self::{
    rows::{Row, Topology},
    suite::Suite,
};
use crate::{redis_server, shell};

/// The words that are for the program of the long histories.
const HISTORIES: [&str; 5] = ["locks", "deferred", "quota", "tasks", "soak"];

const USAGE: &str = "\
usage: cargo xtask faults [--row 7|l7|d7|q7] [--topology single|sentinel|cluster] [--runs N]
                          [--seconds N] [--seed N]
       cargo xtask faults locks|deferred|quota|tasks [--seconds N] [--seed N]
       cargo xtask faults soak [--minutes N] [--seed N]";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish<'a> {
    /// `7` of each table, `l7` of that of locks, `d7` of deferral, `q7` of quotas.
    row: Option<&'a str>,
    topology: Option<Topology>,
    /// How often each test runs.
    runs: u32,
    /// Of each history at the end; none if it is 0, or if a row was chosen.
    seconds: u64,
    seed: Option<u64>,
}

/// Exit code 1 for a violation, 2 for what was asked wrongly.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    match asked(args) {
        Asked::Usage => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Asked::Wrongly(sentence) => crate::refused(sentence),
        Asked::History => with_server(|| history(args)),
        Asked::Table(wish, rows) => with_server(|| show(&wish, rows)),
    }
}

/// What the words come to. Nothing is installed or built for it.
enum Asked<'a> {
    Usage,
    Wrongly(&'static str),
    History,
    Table(Wish<'a>, Vec<&'static Row>),
}

fn asked<'a>(args: &[&'a str]) -> Asked<'a> {
    if args.iter().any(|word| ["help", "--help", "-h"].contains(word)) {
        return Asked::Usage;
    }
    if args.first().is_some_and(|word| HISTORIES.contains(word)) {
        return Asked::History;
    }
    let Some(wish) = wish(args) else { return Asked::Wrongly(USAGE) };
    let rows: Vec<_> = rows::all().filter(|row| is_wished(row, &wish)).collect();
    if rows.is_empty() {
        return Asked::Wrongly("There is no such row.");
    }
    Asked::Table(wish, rows)
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

fn show(wish: &Wish<'_>, rows: Vec<&'static Row>) -> ExitCode {
    let suite = match Suite::build() {
        Ok(suite) => suite,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    let mut found = Vec::new();
    for row in rows {
        found.push(suite.row(row, wish.runs));
        table::progress(&found);
    }
    if wish.row.is_none()
        && wish.seconds > 0
        && wish.topology.is_none_or(|of| of == Topology::Single)
    {
        for which in &HISTORIES[..4] {
            found.push(suite.history(which, wish.seconds, wish.seed));
            table::progress(&found);
        }
    }
    println!("\n{}", table::all(&found));
    if found.iter().any(table::Found::is_bad) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Its exit code is ours: 0, or 1 for a check that failed, or 2 for what was asked wrongly.
fn history(args: &[&str]) -> ExitCode {
    let program =
        ["run", "--quiet", "--package", "lockgate-tests", "--bin", "lockgate-faults", "--"];
    let mut command = shell::cargo([&program, args].concat());
    shell::announce(&command);
    let code = command.status().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn is_wished(row: &Row, wish: &Wish<'_>) -> bool {
    let number = row.number.to_string();
    let name = row.name();
    wish.row.is_none_or(|wished| wished == number || wished == name)
        && wish.topology.is_none_or(|wished| row.topology == wished)
}

fn wish<'a>(args: &[&'a str]) -> Option<Wish<'a>> {
    let mut wish = Wish { row: None, topology: None, runs: 1, seconds: 20, seed: None };
    for option in args.chunks(2) {
        match option {
            ["--row", row] => wish.row = Some(row),
            ["--topology", name] => wish.topology = Some(Topology::parse(name)?),
            ["--runs", n] => wish.runs = n.parse().ok().filter(|runs| *runs > 0)?,
            ["--seconds", n] => wish.seconds = n.parse().ok()?,
            ["--seed", n] => wish.seed = Some(n.parse().ok()?),
            _ => return None,
        }
    }
    Some(wish)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::shell::root;

    #[test]
    fn whoever_asks_for_help_gets_it_and_no_server() {
        for words in [&["--help"][..], &["-h"], &["locks", "--help"], &["--row", "7", "--help"]] {
            assert!(matches!(asked(words), Asked::Usage), "{words:?}");
        }
        assert!(matches!(asked(&["--row", "l99"]), Asked::Wrongly(_)));
        assert!(matches!(asked(&["soak"]), Asked::History));
        assert!(matches!(asked(&["--row", "l7"]), Asked::Table(_, rows) if !rows.is_empty()));
    }

    #[test]
    fn options_are_read() {
        let all = ["--row", "l7", "--topology", "cluster", "--runs", "3", "--seed", "5"];
        let read = wish(&all).unwrap();
        assert_eq!((read.row, read.topology), (Some("l7"), Some(Topology::Cluster)));
        assert_eq!((read.runs, read.seed, read.seconds), (3, Some(5), 20));
        for wrong in [&["--row"][..], &["--runs", "0"], &["--topology", "mesh"], &["x", "y"]] {
            assert_eq!(wish(wrong), None, "{wrong:?}");
        }
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

    /// A test that was renamed is missed here, and not only by a run that takes minutes.
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
