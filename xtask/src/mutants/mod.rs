//! `cargo xtask mutants`: plants faults in a copy of the sources, and shows which test catches each.
//!
//! All faults are compiled into one build, and the variable `LOCKGATE_FAULT` plants one of them at run time. A tool that
//! rebuilds for each fault, such as cargo-mutants, would need a day.

mod faults;
mod tree;
mod trial;

use std::{
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use self::{
    faults::{Fault, Suite},
    tree::{Build, Programs},
    trial::{Ended, Trial},
};
use crate::{
    redis_server::{self, Environment},
    refused,
};

/// Trials at once: tests wait more than they work.
const AT_ONCE: usize = 3;

/// Failures that do not come again before a suite is given up.
const UNSTEADY: usize = 3;

/// What to plant.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only list the faults
    #[arg(long, conflicts_with = "only")]
    list: bool,
    /// Plant only this fault; may be given several times
    #[arg(long, value_name = "FAULT")]
    only: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if args.list {
        println!("{}", list(&faults::all()));
        return ExitCode::SUCCESS;
    }
    let mut chosen = Vec::new();
    for name in &args.only {
        let Some(fault) = faults::all().into_iter().find(|fault| fault.name == *name) else {
            return refused(&format!("there is no fault {name}; `--list` names them"));
        };
        chosen.push(fault);
    }
    if chosen.is_empty() {
        chosen = faults::all();
    }
    match try_all(&chosen) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn list(faults: &[&Fault]) -> String {
    let row = |fault: &&Fault| {
        let suites: Vec<_> = fault.suites.iter().map(Suite::to_string).collect();
        format!("{:<32} {:<14} {} [{}]", fault.name, fault.row, fault.breaks, suites.join("; "))
    };
    faults.iter().map(row).collect::<Vec<_>>().join("\n")
}

/// Returns true if each of these faults is caught by each of its suites.
fn try_all(chosen: &[&'static Fault]) -> Result<bool, String> {
    let server = redis_server::chosen()?;
    if server.is_empty() {
        redis_server::ensure()?;
    }
    let build = Build::prepare(&faults::all())?;
    let suites: Vec<_> = chosen.iter().flat_map(|fault| fault.suites).collect();
    let programs = build.compile(&suites)?;
    let mut rows = hunt(chosen, &programs, &server)?;
    rows.sort_unstable();
    println!("\n| Fault | Row | Breaks | Caught by |\n|---|---|---|---|");
    rows.iter().for_each(|(row, _)| println!("{row}"));
    let caught = rows.iter().filter(|(_, caught)| *caught).count();
    println!("\n{} faults, {caught} of {} suites catch theirs", chosen.len(), rows.len());
    Ok(caught == rows.len())
}

/// Looks for a test that catches each fault; returns rows of the table, with true for a fault that was caught.
fn hunt(
    chosen: &[&'static Fault],
    programs: &Programs,
    server: &Environment,
) -> Result<Vec<(String, bool)>, String> {
    let each = |fault: &&'static Fault| {
        let fault = *fault;
        fault.suites.iter().map(move |suite| (fault, suite))
    };
    let open = Mutex::new(chosen.iter().flat_map(each));
    thread::scope(|scope| {
        let work = || {
            let next = || open.lock().unwrap_or_else(PoisonError::into_inner).next();
            let hunts = std::iter::from_fn(next)
                .map(|(fault, suite)| Hunt { fault, suite, programs, server }.row());
            hunts.collect::<Result<Vec<_>, String>>()
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(thread::ScopedJoinHandle::join);
        let rows = ended.map(|rows| rows.map_err(|_| "a worker panicked".to_owned())?);
        Ok(rows.collect::<Result<Vec<_>, String>>()?.concat())
    })
}

/// The search for a test that catches one fault.
struct Hunt<'a> {
    fault: &'a Fault,
    suite: &'a Suite,
    programs: &'a Programs,
    server: &'a Environment,
}

impl Hunt<'_> {
    /// Returns the row of the table, and true if the fault was caught.
    fn row(&self) -> Result<(String, bool), String> {
        let (Fault { name, row, breaks, .. }, began) = (self.fault, Instant::now());
        let caught = self.run()?;
        let by = caught.as_deref().unwrap_or("**nothing**");
        let row = format!("| {name} | {row} | {breaks} | {by} |");
        println!("{row} {} s", began.elapsed().as_secs());
        Ok((row, caught.is_some()))
    }

    /// Returns the test that fails with the fault, fails again alone, and passes without the fault.
    fn run(&self) -> Result<Option<String>, String> {
        let mut unsteady = Vec::new();
        while unsteady.len() <= UNSTEADY {
            let trial = self.trial(Some(self.fault.name));
            let filters = self.suite.filters.iter().copied().map(str::to_owned).collect();
            let ended = Trial { filters, skipped: unsteady.clone(), ..trial }.run()?;
            let (tests, how) = match ended {
                Ended::Passed => return Ok(None),
                Ended::Failed(test) => (vec![test], ""),
                Ended::Hung(tests) => (tests, " (hung)"),
                Ended::Died(tests) => (tests, " (died)"),
            };
            let named = format!("{} `{}`{how}", self.suite.program, tests.join("`, `"));
            if self.comes_again(&tests, how)? {
                return Ok(Some(named));
            }
            println!("  {}: {named} does not prove it", self.fault.name);
            unsteady.extend(tests);
        }
        Ok(None)
    }

    /// Returns true if these tests fail again by themselves, and pass without the fault.
    fn comes_again(&self, tests: &[String], how: &str) -> Result<bool, String> {
        if tests.is_empty() {
            return Ok(true);
        }
        let alone = |fault| {
            let trial = self.trial(fault);
            Trial { filters: tests.to_vec(), exact: true, ..trial }.run()
        };
        // A test that hung has taken its time already.
        let again = !how.is_empty() || !matches!(alone(Some(self.fault.name))?, Ended::Passed);
        Ok(again && matches!(alone(None)?, Ended::Passed))
    }

    fn trial(&self, fault: Option<&'static str>) -> Trial<'_> {
        let program = self.programs.get(self.suite.program);
        Trial {
            program,
            server: self.server,
            fault,
            filters: Vec::new(),
            skipped: Vec::new(),
            exact: false,
        }
    }
}
