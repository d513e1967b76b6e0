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
    fleet::{Job, Plan, Verdict, conduct},
    history::{Locks, crowd, holder, work},
    ledger::{Books, node},
    quota::{Limits, limiter, spender},
    tasks::{Tasks, tasks},
};

const USAGE: &str = "usage: cargo xtask faults [locks|deferred|quota|tasks|soak] [--seconds N|--minutes N] [--seed N]";

/// Interval of the measurements of a soak.
const EVERY: Duration = Duration::from_secs(45);

type Part = fn(&Plan) -> Verdict;

static PARTS: [(&str, Part); 4] = [
    ("locks", |plan| of_processes().block_on(conduct::<Locks>(plan))),
    ("deferred", |plan| of_processes().block_on(conduct::<Books>(plan))),
    ("quota", |plan| of_processes().block_on(conduct::<Limits>(plan))),
    ("tasks", |plan| of_processes().block_on(conduct::<Tasks>(plan))),
];

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(code) = process(&words) {
        return code;
    }
    let done = match &*words {
        ["soak", options @ ..] => plan(options).map(soaked),
        [name, options @ ..] if PARTS.iter().any(|(part, _)| part == name) => {
            plan(options).map(|plan| checked(&plan, |part| part == *name))
        }
        options => plan(options).map(|plan| checked(&plan, |_| true)),
    };
    match done {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => usage(),
    }
}

/// Runs as one of the processes of a history or a test. None if the words are those of a user.
fn process(words: &[&str]) -> Option<ExitCode> {
    Some(match *words {
        ["holder", url] => as_process(holder(url)),
        ["crowd", url, log] => as_process(crowd(url, Path::new(log))),
        ["spender", url, limit] => match limit.parse() {
            Ok(limit) => as_process(spender(url, limit)),
            Err(_) => usage(),
        },
        [mode @ ("worker" | "limiter" | "runner" | "node"), ref words @ ..] => {
            Job::parse(words).map_or_else(usage, |job| of_a_history(mode, job))
        }
        _ => return None,
    })
}

fn of_a_history(mode: &str, job: Job) -> ExitCode {
    match mode {
        "worker" => as_process(work(job)),
        "limiter" => as_process(limiter(job)),
        "runner" => as_process(tasks(job)),
        _ => {
            goes_with_its_parent();
            node(&job);
            ExitCode::SUCCESS
        }
    }
}

fn as_process(what: impl Future<Output = ()>) -> ExitCode {
    goes_with_its_parent();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime").block_on(what);
    ExitCode::SUCCESS
}

/// Also if it is stopped: then it would not see that its input has ended.
fn goes_with_its_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

/// One after the other, also if one fails: one run tells everything there is to mend.
fn checked(plan: &Plan, chosen: impl Fn(&str) -> bool) -> bool {
    let parts = PARTS.iter().filter(|(name, _)| chosen(name));
    let bad = parts.filter(|(_, part)| !is_good(&part(plan)));
    bad.count() == 0
}

fn is_good(verdict: &Verdict) -> bool {
    print!("{verdict}");
    verdict.wrong.is_empty()
}

/// Locks, deferred requests and quotas at once, each on a server of its own, with all faults.
fn soaked(plan: Plan) -> bool {
    let plan = &Plan { soak: Some(EVERY.min(plan.time / 10)), ..plan };
    println!("seed {}, {:?}: locks, deferred requests and quotas", plan.seed, plan.time);
    // Processes go with the thread that has started them.
    let good = std::thread::scope(|scope| {
        let parts = PARTS[..3].iter().map(|(_, part)| scope.spawn(move || is_good(&part(plan))));
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap_or(false)).fold(true, |all, one| all & one)
    });
    println!("{}", if good { "the soak is good" } else { "the soak is NOT good" });
    good
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
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

/// On the thread that starts the processes: they go when it does.
fn of_processes() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
