//! Runs the history checks, and the processes that they start.
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
    fleet::{HistoryPlan, HistoryReport, ProcessArgs, run_history},
    history::{LockDomain, run_contenders, run_holder, run_lock_worker},
    ledger::{JobDomain, run_node},
    quota::{QuotaDomain, run_quota_client, run_quota_spender},
    tasks::{TaskDomain, run_task_process},
};

/// Interval of the measurements of a soak.
const MAX_SOAK_INTERVAL: Duration = Duration::from_secs(45);

type HistoryCheck = fn(&HistoryPlan) -> HistoryReport;

const LOCK_CHECK: HistoryCheck =
    |plan| current_thread_runtime().block_on(run_history::<LockDomain>(plan));
const JOB_CHECK: HistoryCheck =
    |plan| current_thread_runtime().block_on(run_history::<JobDomain>(plan));
const QUOTA_CHECK: HistoryCheck =
    |plan| current_thread_runtime().block_on(run_history::<QuotaDomain>(plan));
const TASK_CHECK: HistoryCheck =
    |plan| current_thread_runtime().block_on(run_history::<TaskDomain>(plan));

/// Histories of processes under random faults, checked against the guarantees
#[derive(Debug, Parser)]
#[command(name = "lockgate-faults")]
struct FaultsArgs {
    #[command(subcommand)]
    mode: RunMode,
}

#[derive(Debug, Subcommand)]
enum RunMode {
    /// Locks alone
    Locks(HistoryOptions),
    /// Deferred requests alone
    Deferred(HistoryOptions),
    /// Quotas alone
    Quota(HistoryOptions),
    /// Tasks alone
    Tasks(HistoryOptions),
    /// Locks, deferred requests and quotas at once, each on a server of its own, with all faults
    Soak(HistoryOptions),
    #[command(flatten)]
    Process(ProcessMode),
}

#[derive(Debug, clap::Args)]
struct HistoryOptions {
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
enum ProcessMode {
    Holder { url: String },
    Crowd { url: String, log: PathBuf },
    Spender { url: String, limit: u64 },
    Worker(ProcessArgs),
    Limiter(ProcessArgs),
    Runner(ProcessArgs),
    Node(ProcessArgs),
}

fn main() -> ExitCode {
    let (options, check) = match FaultsArgs::parse().mode {
        RunMode::Process(process) => return run_process(process),
        RunMode::Soak(options) => return exit_code(run_soak(options.history_plan())),
        RunMode::Locks(options) => (options, LOCK_CHECK),
        RunMode::Deferred(options) => (options, JOB_CHECK),
        RunMode::Quota(options) => (options, QUOTA_CHECK),
        RunMode::Tasks(options) => (options, TASK_CHECK),
    };
    exit_code(print_report(&check(&options.history_plan())))
}

fn exit_code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_process(process: ProcessMode) -> ExitCode {
    match process {
        ProcessMode::Holder { url } => run_until_complete(run_holder(&url)),
        ProcessMode::Crowd { url, log } => run_until_complete(run_contenders(&url, &log)),
        ProcessMode::Spender { url, limit } => run_until_complete(run_quota_spender(&url, limit)),
        ProcessMode::Worker(args) => run_until_complete(run_lock_worker(args)),
        ProcessMode::Limiter(args) => run_until_complete(run_quota_client(args)),
        ProcessMode::Runner(args) => run_until_complete(run_task_process(args)),
        ProcessMode::Node(args) => {
            kill_with_parent();
            run_node(&args);
            ExitCode::SUCCESS
        }
    }
}

fn run_until_complete(future: impl Future<Output = ()>) -> ExitCode {
    kill_with_parent();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime").block_on(future);
    ExitCode::SUCCESS
}

/// Ends this process with its parent, even while it is stopped and cannot see the end of its input.
fn kill_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

fn print_report(report: &HistoryReport) -> bool {
    print!("{report}");
    report.violations.is_empty()
}

/// Locks, deferred requests and quotas at once, each on a server of its own, with all faults.
fn run_soak(plan: HistoryPlan) -> bool {
    let plan =
        &HistoryPlan { soak_interval: Some(MAX_SOAK_INTERVAL.min(plan.duration / 10)), ..plan };
    println!("seed {}, {:?}: locks, deferred requests and quotas", plan.seed, plan.duration);
    // Child processes end with the thread that started them.
    let passed = std::thread::scope(|scope| {
        let checks = [LOCK_CHECK, JOB_CHECK, QUOTA_CHECK]
            .map(|check| scope.spawn(move || print_report(&check(plan))));
        checks
            .into_iter()
            .map(|check| check.join().unwrap_or(false))
            .fold(true, |all, one| all & one)
    });
    println!("{}", if passed { "the soak is good" } else { "the soak is NOT good" });
    passed
}

impl HistoryOptions {
    fn history_plan(&self) -> HistoryPlan {
        let seconds = self.minutes.map_or(self.seconds, |minutes| minutes.saturating_mul(60));
        let random_seed = || u64::from(uuid::Uuid::new_v4().as_fields().0);
        HistoryPlan {
            program: std::env::current_exe().expect("this program has a path"),
            duration: Duration::from_secs(seconds),
            seed: self.seed.unwrap_or_else(random_seed),
            soak_interval: None,
        }
    }
}

/// Runtime on the thread that starts the processes, because they end with that thread.
fn current_thread_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
