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

/// Command-line arguments of a process.
#[derive(Debug, Clone, clap::Args)]
pub struct ProcessArgs {
    /// URL of the store.
    pub(crate) url: String,
    /// File of the event log.
    pub(crate) log_path: PathBuf,
    /// Seed of the random choices.
    pub(crate) seed: u64,
    /// Settings of the domain.
    #[arg(allow_hyphen_values = true)]
    pub(crate) setup: String,
}

impl ProcessArgs {
    pub(super) fn to_args(&self, mode: &str) -> [String; 5] {
        let log = self.log_path.display().to_string();
        [mode.to_owned(), self.url.clone(), log, self.seed.to_string(), self.setup.clone()]
    }
}

/// Decides whether the process may start new work.
#[derive(Debug, Default)]
pub(crate) struct ProcessControl {
    is_resting: AtomicBool,
    stop_requested: AtomicBool,
}

impl ProcessControl {
    /// Reads commands from the input: `rest`, `go`, `stop`, and `gauge`, which prints the number of
    /// tasks. Other commands are passed on. The end of the input ends the process.
    pub(crate) fn from_stdin(on_other_command: impl Fn(&str) + Send + 'static) -> Arc<Self> {
        let (control, runtime) = (Arc::<Self>::default(), Handle::current());
        let thread_control = Arc::clone(&control);
        // A separate thread ends the process even if the runtime is blocked.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                match &*line {
                    "rest" => thread_control.set_resting(true),
                    "go" => thread_control.set_resting(false),
                    "stop" => thread_control.request_stop(),
                    "gauge" => resource_usage::report_task_count(&runtime),
                    command => on_other_command(command),
                }
            }
            std::process::exit(0);
        });
        control
    }

    pub(crate) fn set_resting(&self, resting: bool) {
        self.is_resting.store(resting, Ordering::Relaxed);
    }

    pub(crate) fn request_stop(&self) {
        self.stop_requested.store(true, Ordering::Relaxed);
    }

    /// Waits while the process has to pause. Returns false after a stop request.
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

/// Prints a line to the parent process.
pub(crate) fn print_line(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Reports that no work is active, and waits for the end of the process.
pub(crate) async fn report_idle_and_wait(clean: bool) {
    print_line(&format!("quiet {clean}"));
    std::future::pending::<()>().await;
}
