//! Control of a process from inside: its arguments, the commands on its input, and its output
//! lines.

use std::{
    io::{BufRead as _, Write as _},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use crate::resource_usage;

/// What a process is told on its command line.
#[derive(Debug, Clone, clap::Args)]
pub struct ProcessArgs {
    /// URL of its store.
    pub(crate) url: String,
    /// File that it writes to.
    pub(crate) log_path: PathBuf,
    /// Seed of its choices.
    pub(crate) seed: u64,
    /// Words of its domain.
    #[arg(allow_hyphen_values = true)]
    pub(crate) setup: String,
}

impl ProcessArgs {
    pub(super) fn to_args(&self, mode: &str) -> [String; 5] {
        let log = self.log_path.display().to_string();
        [mode.to_owned(), self.url.clone(), log, self.seed.to_string(), self.setup.clone()]
    }
}

/// Whether to begin anything new.
#[derive(Debug, Default)]
pub(crate) struct ProcessControl {
    is_resting: AtomicBool,
    stop_requested: AtomicBool,
}

impl ProcessControl {
    /// Follows the input: `rest`, `go`, `stop`, and `gauge`, which is answered by the number of tasks; other words are
    /// passed on. The end of the input ends the process.
    pub(crate) fn from_stdin(other: impl Fn(&str) + Send + 'static) -> Arc<Self> {
        let (orders, runtime) = (Arc::<Self>::default(), Handle::current());
        let its = Arc::clone(&orders);
        // A thread of its own: it ends the process even if the runtime is blocked.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                match &*line {
                    "rest" => its.set_resting(true),
                    "go" => its.set_resting(false),
                    "stop" => its.request_stop(),
                    "gauge" => resource_usage::report_task_count(&runtime),
                    word => other(word),
                }
            }
            std::process::exit(0);
        });
        orders
    }

    pub(crate) fn set_resting(&self, rests: bool) {
        self.is_resting.store(rests, Ordering::Relaxed);
    }

    pub(crate) fn request_stop(&self) {
        self.stop_requested.store(true, Ordering::Relaxed);
    }

    /// Waits while it is to rest. Returns false once it is to stop.
    pub(crate) async fn wait_to_continue(&self) -> bool {
        while !self.stop_requested.load(Ordering::Relaxed) {
            if !self.is_resting.load(Ordering::Relaxed) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

/// Says a line to the process that started this one.
pub(crate) fn print_line(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Says that nothing is under way any more, and waits for the end of the process.
pub(crate) async fn report_idle_and_wait(clean: bool) {
    print_line(&format!("quiet {clean}"));
    std::future::pending::<()>().await;
}
