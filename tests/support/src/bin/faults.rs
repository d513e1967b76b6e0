//! The history checks by themselves, and the processes that they are made with.
//!
//! ```console
//! $ cargo xtask faults locks --seconds 60
//! $ cargo xtask faults deferred --seconds 600 --seed 7
//! $ cargo xtask faults quota --seconds 60
//! $ cargo xtask faults tasks --seconds 60
//! $ cargo xtask faults soak --minutes 20
//! ```

use std::{env, path::Path, process::ExitCode, time::Duration};

use lockgate_tests::{
    history::{Job, Plan, conduct, crowd, holder, work},
    ledger,
    quota::{self, limiter, spender},
    tasks::{self, tasks},
};

const USAGE: &str = "usage: cargo xtask faults [locks|deferred|quota|tasks|soak] [--seconds N|--minutes N] [--seed N]";

/// How often all rest in a soak, and are measured.
const EVERY: Duration = Duration::from_secs(45);

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
        ["crowd", url, log] => {
            goes_with_its_parent();
            runtime().block_on(crowd(url, Path::new(log)));
            ExitCode::SUCCESS
        }
        ["limiter", url, log, seed] => {
            goes_with_its_parent();
            let Ok(seed) = seed.parse() else { return usage() };
            runtime().block_on(limiter(url, Path::new(log), seed));
            ExitCode::SUCCESS
        }
        ["spender", url, limit] => {
            goes_with_its_parent();
            let Ok(limit) = limit.parse() else { return usage() };
            runtime().block_on(spender(url, limit));
            ExitCode::SUCCESS
        }
        ["tasks", url, log, seed] => {
            goes_with_its_parent();
            let Ok(seed) = seed.parse() else { return usage() };
            runtime().block_on(tasks(url, Path::new(log), seed));
            ExitCode::SUCCESS
        }
        ["node", ..] => {
            goes_with_its_parent();
            let Some(setup) = ledger::Setup::parse(&words[1..]) else { return usage() };
            ledger::node(&setup);
            ExitCode::SUCCESS
        }
        ["locks", options @ ..] => checked(options, &[of_locks]),
        ["deferred", options @ ..] => checked(options, &[of_deferred]),
        ["quota", options @ ..] => checked(options, &[of_quotas]),
        ["tasks", options @ ..] => checked(options, &[of_tasks]),
        ["soak", options @ ..] => soaked(options),
        options => checked(options, &[of_locks, of_deferred, of_quotas, of_tasks]),
    }
}

type Part = fn(&Plan) -> bool;

/// One after the other, also if one fails: one look tells everything there is to mend.
fn checked(options: &[&str], parts: &[Part]) -> ExitCode {
    let Some(plan) = plan(options) else { return usage() };
    let bad = parts.iter().filter(|part| !part(&plan)).count();
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All at once, each on a server of its own, with all that can be done to them.
fn soaked(options: &[&str]) -> ExitCode {
    let Some(plan) = plan(options) else { return usage() };
    let plan = Plan { soak: Some(EVERY.min(plan.time / 10)), ..plan };
    println!("seed {}, {:?}: locks, deferred requests and quotas", plan.seed, plan.time);
    let parts: [Part; 3] = [of_locks, of_deferred, of_quotas];
    // Processes go with the thread that has started them.
    let good = std::thread::scope(|scope| {
        let parts = parts.map(|part| {
            let plan = &plan;
            scope.spawn(move || part(plan))
        });
        parts.map(|part| part.join().unwrap_or(false))
    });
    println!("{}", if good == [true; 3] { "the soak is good" } else { "the soak is NOT good" });
    if good == [true; 3] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
            ["--minutes", n] => seconds = n.parse::<u64>().ok()?.checked_mul(60)?,
            ["--seed", n] => seed = Some(n.parse().ok()?),
            _ => return None,
        }
    }
    let any = || u64::from(uuid::Uuid::new_v4().as_fields().0);
    Some(Plan {
        program: env::current_exe().ok()?,
        time: Duration::from_secs(seconds),
        seed: seed.unwrap_or_else(any),
        soak: None,
    })
}

fn of_locks(plan: &Plan) -> bool {
    let verdict = of_processes().block_on(conduct(plan));
    print!("{verdict}");
    verdict.wrong.is_empty()
}

fn of_quotas(plan: &Plan) -> bool {
    let verdict = of_processes().block_on(quota::conduct(plan));
    print!("{verdict}");
    verdict.wrong.is_empty()
}

fn of_tasks(plan: &Plan) -> bool {
    let verdict = of_processes().block_on(tasks::conduct(plan));
    print!("{verdict}");
    verdict.wrong.is_empty()
}

fn of_deferred(plan: &Plan) -> bool {
    let Plan { program, time, seed, soak } = plan.clone();
    let plan = ledger::Plan { program, time, seed, soak };
    let (done, verdict) = of_processes().block_on(ledger::conduct(&plan));
    print!("{done}\n{verdict}");
    verdict.wrong.is_empty()
}

/// On the thread that starts the processes: they go when it does.
fn of_processes() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
