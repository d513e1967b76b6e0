//! Resource usage of a process: memory, file descriptors, tasks.

use std::{fs, thread::ThreadId, time::Duration};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::fleet::{ChildProcess, process_control::print_line};

/// Time for active work to end: a lease and releases in the background.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Usage of one idle process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    /// Resident memory, KiB. `None`, like the other fields, if it cannot be read.
    pub(crate) memory_kib: Option<u64>,
    pub(crate) open_files: Option<u64>,
    /// `None` if the process was not queried or did not respond.
    pub(crate) alive_tasks: Option<u64>,
}

impl ResourceUsage {
    /// Reads the usage of a process without tasks of this library.
    pub(crate) fn of_process(pid: u32) -> Self {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count);
        Self {
            memory_kib: pages.map(|pages| pages * 4),
            open_files: files.and_then(|files| u64::try_from(files).ok()),
            alive_tasks: None,
        }
    }

    /// Reads the usage of a fleet process and queries its number of tasks.
    pub(crate) async fn query_process(process: &mut ChildProcess) -> Self {
        let mut usage = process.pid().map(Self::of_process).unwrap_or_default();
        process.send_line("gauge").await;
        let line = tokio::time::timeout(Duration::from_secs(20), process.next_line()).await;
        let line = line.ok().flatten().unwrap_or_default();
        usage.alive_tasks = line.strip_prefix("gauge ").and_then(|n| n.parse().ok());
        usage
    }
}

/// Runtimes of this process other than the reporting one, by the thread that registered them.
static OTHER_RUNTIMES: Mutex<Vec<(ThreadId, RuntimeMetrics)>> = Mutex::new(Vec::new());

/// Counts the tasks of the current runtime too, since a framework may have one per thread. (Local
/// tasks of a thread are not counted; the library spawns none.)
pub(crate) fn register_runtime() {
    let (thread_id, metrics) = (std::thread::current().id(), Handle::current().metrics());
    let mut runtimes = OTHER_RUNTIMES.lock();
    runtimes.retain(|(thread, _)| *thread != thread_id);
    runtimes.push((thread_id, metrics));
}

/// Prints the number of tasks of this process after `SETTLE_TIME`.
pub(crate) fn report_task_count(handle: &Handle) {
    let metrics = handle.metrics();
    handle.spawn(async move {
        tokio::time::sleep(SETTLE_TIME).await;
        let other_tasks: usize =
            OTHER_RUNTIMES.lock().iter().map(|(_, runtime)| runtime.num_alive_tasks()).sum();
        print_line(&format!("gauge {}", metrics.num_alive_tasks() + other_tasks));
    });
}
