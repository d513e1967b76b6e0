//! `cargo xtask mutants`: plants faults in a copy of the sources and reports the test that catches
//! each one.
//!
//! One build contains all faults, and the variable `LOCKGATE_FAULT` activates one of them at run
//! time. A tool that rebuilds for each fault, such as cargo-mutants, would need a day.

mod faults;
mod mutant_build;
mod test_trial;

use std::{
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use self::{
    faults::{SourceFault, TestSuite},
    mutant_build::{MutantBuild, TestProgramMap},
    test_trial::{TestTrial, TrialOutcome},
};
use crate::{
    redis_server_installation::{self, TestEnvironment},
    usage_error,
};

/// Parallel trials. Tests spend more time waiting than working.
const PARALLEL_TRIALS: usize = 3;

/// Unconfirmed failures allowed before the search in a suite ends without a result.
const MAX_UNCONFIRMED_FAILURES: usize = 3;

/// Faults to plant.
#[derive(Debug, clap::Args)]
pub(crate) struct MutantsArgs {
    /// Only list the faults
    #[arg(long, conflicts_with = "only")]
    list: bool,
    /// Plant only this fault; may be given several times
    #[arg(long, value_name = "FAULT")]
    only: Vec<String>,
}

pub(crate) fn run(args: &MutantsArgs) -> ExitCode {
    if args.list {
        println!("{}", format_fault_list(&faults::all_faults()));
        return ExitCode::SUCCESS;
    }
    let mut chosen = Vec::new();
    for name in &args.only {
        let Some(fault) = faults::all_faults().into_iter().find(|fault| fault.name == *name) else {
            return usage_error(&format!("there is no fault {name}; `--list` names them"));
        };
        chosen.push(fault);
    }
    if chosen.is_empty() {
        chosen = faults::all_faults();
    }
    match check_all_faults(&chosen) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn format_fault_list(faults: &[&SourceFault]) -> String {
    let row = |fault: &&SourceFault| {
        let suites: Vec<_> = fault.suites.iter().map(TestSuite::to_string).collect();
        format!(
            "{:<32} {:<14} {} [{}]",
            fault.name,
            fault.table_row,
            fault.broken_behavior,
            suites.join("; ")
        )
    };
    faults.iter().map(row).collect::<Vec<_>>().join("\n")
}

/// Returns true if every suite of these faults catches its fault.
fn check_all_faults(chosen: &[&'static SourceFault]) -> Result<bool, String> {
    let server = redis_server_installation::chosen_server_environment()?;
    if server.is_empty() {
        redis_server_installation::ensure_installed()?;
    }
    let build = MutantBuild::prepare(&faults::all_faults())?;
    let suites: Vec<_> = chosen.iter().flat_map(|fault| fault.suites).collect();
    let programs = build.compile(&suites)?;
    let mut rows = detect_faults(chosen, &programs, &server)?;
    rows.sort_unstable();
    println!("\n| Fault | Row | Breaks | Caught by |\n|---|---|---|---|");
    rows.iter().for_each(|(row, _)| println!("{row}"));
    let caught = rows.iter().filter(|(_, caught)| *caught).count();
    println!("\n{} faults, {caught} of {} suites catch theirs", chosen.len(), rows.len());
    Ok(caught == rows.len())
}

/// Looks for a test that catches each fault. Returns the rows of the table, with true for a caught
/// fault.
fn detect_faults(
    chosen: &[&'static SourceFault],
    programs: &TestProgramMap,
    server: &TestEnvironment,
) -> Result<Vec<(String, bool)>, String> {
    let with_suites = |fault: &&'static SourceFault| {
        let fault = *fault;
        fault.suites.iter().map(move |suite| (fault, suite))
    };
    let remaining = Mutex::new(chosen.iter().flat_map(with_suites));
    thread::scope(|scope| {
        let work = || {
            let next = || remaining.lock().unwrap_or_else(PoisonError::into_inner).next();
            let rows = std::iter::from_fn(next).map(|(fault, suite)| {
                FaultDetection { fault, suite, programs, server }.report_row()
            });
            rows.collect::<Result<Vec<_>, String>>()
        };
        let workers: Vec<_> = (0..PARALLEL_TRIALS).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(thread::ScopedJoinHandle::join);
        let rows = results.map(|rows| rows.map_err(|_| "a worker panicked".to_owned())?);
        Ok(rows.collect::<Result<Vec<_>, String>>()?.concat())
    })
}

/// Search for a test that catches one fault.
struct FaultDetection<'a> {
    fault: &'a SourceFault,
    suite: &'a TestSuite,
    programs: &'a TestProgramMap,
    server: &'a TestEnvironment,
}

impl FaultDetection<'_> {
    /// Returns the row of the table, and true if the fault was caught.
    fn report_row(&self) -> Result<(String, bool), String> {
        let started_at = Instant::now();
        let SourceFault { name, table_row, broken_behavior, .. } = self.fault;
        let failing_test = self.find_failing_test()?;
        let caught_by = failing_test.as_deref().unwrap_or("**nothing**");
        let row = format!("| {name} | {table_row} | {broken_behavior} | {caught_by} |");
        println!("{row} {} s", started_at.elapsed().as_secs());
        Ok((row, failing_test.is_some()))
    }

    /// Returns a test that fails with the fault, fails again alone, and passes without the fault.
    fn find_failing_test(&self) -> Result<Option<String>, String> {
        let mut unconfirmed = Vec::new();
        while unconfirmed.len() <= MAX_UNCONFIRMED_FAILURES {
            let trial = self.new_trial(Some(self.fault.name));
            let filters = self.suite.filters.iter().copied().map(str::to_owned).collect();
            let skipped_tests = unconfirmed.clone();
            let outcome = TestTrial { filters, skipped_tests, ..trial }.run()?;
            let (tests, suffix) = match outcome {
                TrialOutcome::Passed => return Ok(None),
                TrialOutcome::Failed(test) => (vec![test], ""),
                TrialOutcome::Hung(tests) => (tests, " (hung)"),
                TrialOutcome::Died(tests) => (tests, " (died)"),
            };
            let description = format!("{} `{}`{suffix}", self.suite.program, tests.join("`, `"));
            if self.is_confirmed(&tests, suffix)? {
                return Ok(Some(description));
            }
            println!("  {}: {description} does not prove it", self.fault.name);
            unconfirmed.extend(tests);
        }
        Ok(None)
    }

    /// Returns true if these tests fail again alone and pass without the fault.
    fn is_confirmed(&self, tests: &[String], suffix: &str) -> Result<bool, String> {
        if tests.is_empty() {
            return Ok(true);
        }
        let run_alone = |fault| {
            let trial = self.new_trial(fault);
            TestTrial { filters: tests.to_vec(), exact_names: true, ..trial }.run()
        };
        // A test that hung is not run again with the fault, because that takes too long.
        let fails_again = !suffix.is_empty()
            || !matches!(run_alone(Some(self.fault.name))?, TrialOutcome::Passed);
        Ok(fails_again && matches!(run_alone(None)?, TrialOutcome::Passed))
    }

    fn new_trial(&self, fault: Option<&'static str>) -> TestTrial<'_> {
        let program = self.programs.get(self.suite.program);
        TestTrial {
            program,
            environment: self.server,
            fault,
            filters: Vec::new(),
            skipped_tests: Vec::new(),
            exact_names: false,
        }
    }
}
