//! The history checks by themselves, and the processes that they are made with.
//!
//! ```console
//! $ cargo xtask faults locks --seconds 60
//! $ cargo xtask faults deferred --seconds 600 --seed 7
//! $ cargo xtask faults quota --seconds 60
//! $ cargo xtask faults tasks --seconds 60
//! $ cargo xtask faults soak --minutes 20
//! ```

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use lockgate_tests::{
    fleet::{Job, Plan, Verdict, conduct},
    history::{Locks, crowd, holder, work},
    ledger::{Books, node},
    quota::{Limits, limiter, spender},
    tasks::{Tasks, tasks},
};

/// Interval of the measurements of a soak.
const EVERY: Duration = Duration::from_secs(45);

type Check = fn(&Plan) -> Verdict;

const LOCKS: Check = |plan| of_processes().block_on(conduct::<Locks>(plan));
const DEFERRED: Check = |plan| of_processes().block_on(conduct::<Books>(plan));
const QUOTA: Check = |plan| of_processes().block_on(conduct::<Limits>(plan));
const TASKS: Check = |plan| of_processes().block_on(conduct::<Tasks>(plan));

/// Histories of processes under random faults, checked against the guarantees
#[derive(Debug, Parser)]
#[command(name = "lockgate-faults")]
struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Locks alone
    Locks(Options),
    /// Deferred requests alone
    Deferred(Options),
    /// Quotas alone
    Quota(Options),
    /// Tasks alone
    Tasks(Options),
    /// Locks, deferred requests and quotas at once, each on a server of its own, with all faults
    Soak(Options),
    #[command(flatten)]
    Process(Process),
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Length
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The same in minutes
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// Seed of the random faults
    #[arg(long)]
    seed: Option<u64>,
}

/// One process of a history or of a test.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Process {
    Holder { url: String },
    Crowd { url: String, log: PathBuf },
    Spender { url: String, limit: u64 },
    Worker(Job),
    Limiter(Job),
    Runner(Job),
    Node(Job),
}

fn main() -> ExitCode {
    let (options, check) = match Args::parse().mode {
        Mode::Process(process) => return run(process),
        Mode::Soak(options) => return code(soaked(options.plan())),
        Mode::Locks(options) => (options, LOCKS),
        Mode::Deferred(options) => (options, DEFERRED),
        Mode::Quota(options) => (options, QUOTA),
        Mode::Tasks(options) => (options, TASKS),
    };
    code(is_good(&check(&options.plan())))
}

fn code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(process: Process) -> ExitCode {
    match process {
        Process::Holder { url } => as_process(holder(&url)),
        Process::Crowd { url, log } => as_process(crowd(&url, &log)),
        Process::Spender { url, limit } => as_process(spender(&url, limit)),
        Process::Worker(job) => as_process(work(job)),
        Process::Limiter(job) => as_process(limiter(job)),
        Process::Runner(job) => as_process(tasks(job)),
        Process::Node(job) => {
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
        let parts = [LOCKS, DEFERRED, QUOTA].map(|part| scope.spawn(move || is_good(&part(plan))));
        parts.into_iter().map(|part| part.join().unwrap_or(false)).fold(true, |all, one| all & one)
    });
    println!("{}", if good { "the soak is good" } else { "the soak is NOT good" });
    good
}

impl Options {
    fn plan(&self) -> Plan {
        let seconds = self.minutes.map_or(self.seconds, |minutes| minutes.saturating_mul(60));
        let any = || u64::from(uuid::Uuid::new_v4().as_fields().0);
        Plan {
            program: std::env::current_exe().expect("this program has a path"),
            time: Duration::from_secs(seconds),
            seed: self.seed.unwrap_or_else(any),
            soak: None,
        }
    }
}

/// On the thread that starts the processes: they go when it does.
fn of_processes() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
