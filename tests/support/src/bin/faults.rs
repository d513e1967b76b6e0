//! The history check by itself, and the processes that it is made with.
//!
//! ```console
//! $ cargo xtask faults --seconds 60
//! ```

use std::{env, process::ExitCode, time::Duration};

use lockgate_tests::history::{Job, Plan, conduct, holder, work};

const USAGE: &str = "usage: cargo xtask faults [--seconds N] [--seed N]";

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
        options => match plan(options) {
            Some(plan) => run(&plan),
            None => usage(),
        },
    }
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

fn run(plan: &Plan) -> ExitCode {
    // On the thread that starts the processes: they go when it does.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let verdict = runtime.block_on(conduct(plan));
    print!("{verdict}");
    if verdict.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
