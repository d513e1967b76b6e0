//! The history checks by themselves, and the processes that they are made with.
//!
//! ```console
//! $ cargo xtask faults --seconds 60
//! $ cargo xtask faults deferred --seconds 600 --seed 7
//! ```
//!
//! First that of locks, then that of deferred requests, each for so long; a word chooses one.

use std::{env, process::ExitCode, time::Duration};

use lockgate_tests::{
    history::{Job, Plan, conduct, holder, work},
    ledger,
};

const USAGE: &str = "usage: cargo xtask faults [locks|deferred] [--seconds N] [--seed N]";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words_of: Vec<&str> = words.iter().map(String::as_str).collect();
    match words_of.as_slice() {
        ["worker", ..] => {
            goes_with_its_parent();
            let Some(job) = Job::parse(&words[1..]) else { return usage() };
            runtime().block_on(work(job));
            ExitCode::SUCCESS
        }
        ["holder", url] => {
            goes_with_its_parent();
            runtime().block_on(holder(url));
            ExitCode::SUCCESS
        }
        ["node", ..] => {
            goes_with_its_parent();
            let Some(setup) = ledger::Setup::parse(&words[1..]) else { return usage() };
            ledger::node(&setup);
            ExitCode::SUCCESS
        }
        ["locks", options @ ..] => checked(options, true, false),
        ["deferred", options @ ..] => checked(options, false, true),
        options => checked(options, true, true),
    }
}

fn checked(options: &[&str], locks: bool, deferred: bool) -> ExitCode {
    let Some(plan) = plan(options) else { return usage() };
    // Both, also if the first one fails: one look tells everything there is to mend.
    let good = [!locks || of_locks(&plan), !deferred || of_deferred(&plan)];
    if good == [true; 2] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// Also one that is stopped, which would not see that its input has ended.
fn goes_with_its_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

fn plan(options: &[&str]) -> Option<Plan> {
    let (mut seconds, mut seed) = (60, None);
    for option in options.chunks(2) {
        match option {
            ["--seconds", n] => seconds = n.parse().ok()?,
            ["--seed", n] => seed = Some(n.parse().ok()?),
            _ => return None,
        }
    }
    let any = || u64::from(uuid::Uuid::new_v4().as_fields().0);
    Some(Plan {
        program: env::current_exe().ok()?,
        time: Duration::from_secs(seconds),
        seed: seed.unwrap_or_else(any),
    })
}

fn of_locks(plan: &Plan) -> bool {
    let verdict = of_processes().block_on(conduct(plan));
    print!("{verdict}");
    verdict.wrong.is_empty()
}

fn of_deferred(plan: &Plan) -> bool {
    let Plan { program, time, seed } = plan.clone();
    let plan = ledger::Plan { program, time, seed };
    let (done, verdict) = of_processes().block_on(ledger::conduct(&plan));
    print!("{done}\n{verdict}");
    verdict.wrong.is_empty()
}

/// On the thread that starts the processes: they go when it does.
fn of_processes() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
